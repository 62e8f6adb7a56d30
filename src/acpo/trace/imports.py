"""`acpo import`: what other trainers wrote about their rollouts, scored under a model, as a trace.

Texts are tokenised anew, and a text has many tokenisations: the tokens are those of the text, not
always those that were drawn. The header says so, and no log-probabilities of the sampling policy
are written. Files are data from anybody; formats that execute when opened are not read.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from acpo.errors import ACPOError
from acpo.evaluate.backends import Sampling
from acpo.evaluate.backends.transformers import TransformersBackend
from acpo.objectives import get_method
from acpo.records import TraceWriter, has_begun
from acpo.scoring.pieces import Pieces
from acpo.scoring.rollouts import SampledCompletion, prompt_id, score, trace_rows
from acpo.trace.write import print_trace

Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class ForeignRollout:
    """A completion as another trainer wrote it down."""

    step: int
    prompt: str | Messages
    completion: str
    reward: float | None
    answer: str | None


def import_rollouts(
    source: Path,
    output: Path,
    *,
    model: str,
    method: str = "acpo",
    temperature: float = 1.0,
    top_k: int = 5,
    device: str | None = None,
    batch_size: int = 32,
) -> None:
    """Score another trainer's rollouts and write them as a trace, one part per step.

    Raises:
        ACPOError: `source` is of no known format or damaged, or `output` holds a trace.
    """
    if has_begun(output):
        raise ACPOError(f"{output} holds a trace already: name another --output")
    steps = read_rollouts(source)
    row = get_method(method)
    sampling = Sampling(temperature, chat=False)
    backend = TransformersBackend(model, sampling, batch_size=batch_size, device=device)
    tokenizer, loaded = backend.checkpoint.tokenizer, backend.load()
    pieces = Pieces(tokenizer)
    header = {
        "source": "import",
        "retokenised": True,
        "model": model,
        "vocab_size": loaded.get_output_embeddings().weight.shape[0],
        "temperature": temperature,
        "method": method,
        "top_k": top_k,
    }
    with TraceWriter(output, header) as writer:
        for step, rollouts in sorted(steps.items()):
            found = [
                trace_rows(
                    group,
                    score(
                        loaded, group, temperature=temperature, top_k=top_k, batch_size=batch_size
                    ),
                    pieces,
                    method=row,
                    group_size=len(group),
                    sampled_by_scorer=False,
                )
                for group in _groups(rollouts, tokenizer)
            ]
            rows = [one for own, _ in found for one in own]
            columns = {key: np.concatenate([own[key] for _, own in found]) for key in found[0][1]}
            writer.append(rows, columns, step=step)
    print_trace(output)


def read_rollouts(source: Path) -> dict[int, list[ForeignRollout]]:
    """Rollouts by step: verl's `rollout_data_dir`, or TRL's `log_completions` Parquet.

    Raises:
        ACPOError: naming the file and what is wrong with it.
    """
    lines = sorted(source.glob("*.jsonl")) if source.is_dir() else []
    tables = sorted(source.glob("**/completions_*.parquet")) if source.is_dir() else []
    if source.suffix in (".jsonl", ".parquet"):
        lines, tables = ([source], []) if source.suffix == ".jsonl" else ([], [source])
    if not lines and not tables:
        raise ACPOError(
            f"{source} is neither verl's rollout_data_dir (N.jsonl) nor TRL's completions "
            "(completions_*.parquet)"
        )
    steps: dict[int, list[ForeignRollout]] = {}
    for file in (*lines, *tables):
        read = _read_verl if file.suffix == ".jsonl" else _read_trl
        for number, value in enumerate(read(file), start=1):
            try:
                rollout = _rollout(value)
            except (KeyError, TypeError, ValueError) as error:
                raise ACPOError(f"{file}, row {number}: {error!r:.200}") from error
            steps.setdefault(rollout.step, []).append(rollout)
    return steps


def _read_verl(file: Path) -> Iterator[dict[str, Any]]:
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                row = json.loads(line)
                yield {
                    "step": row.get("step", int(file.stem) if file.stem.isdigit() else 0),
                    "prompt": row["input"],
                    "completion": row["output"],
                    "reward": row.get("score"),
                    "answer": row.get("gts"),
                }
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise ACPOError(f"{file}:{number} is not verl's ({error!r:.100})") from error


def _read_trl(file: Path) -> Iterator[dict[str, Any]]:
    try:
        table = pq.read_table(file)
        rewards = [
            field.name
            for field in table.schema
            if pa.types.is_floating(field.type) and field.name != "advantage"
        ]
        for row in table.to_pylist():
            known = [row[name] for name in rewards if row[name] is not None]
            yield {
                "step": row["step"],
                "prompt": row["prompt"],
                "completion": _said(row["completion"]),
                "reward": sum(known) if known else None,
                "answer": None,
            }
    except (OSError, pa.ArrowException, KeyError) as error:
        raise ACPOError(f"{file} is not TRL's completions ({error!r:.100})") from error


def _said(completion: Any) -> Any:
    """The text of a completion, whether it is one or a list of messages."""
    if isinstance(completion, list):
        return "".join(str(message["content"]) for message in completion)
    return completion


def _rollout(value: dict[str, Any]) -> ForeignRollout:
    prompt, completion, reward = value["prompt"], value["completion"], value["reward"]
    if not isinstance(completion, str) or not isinstance(prompt, str | list):
        raise TypeError("prompt and completion must be texts")
    if reward is not None:
        reward = float(reward)
        reward = None if reward != reward else reward
    if type(value["step"]) is not int or value["step"] < 0:
        raise ValueError(f"step={value['step']!r:.50}")
    answer = None if value["answer"] is None else str(value["answer"])
    return ForeignRollout(value["step"], prompt, completion, reward, answer)


def _groups(rollouts: list[ForeignRollout], tokenizer: Any) -> list[list[SampledCompletion]]:
    """Completions of one prompt together, in the order in which prompts come."""
    groups: dict[str, list[SampledCompletion]] = {}
    for rollout in rollouts:
        prompt = rollout.prompt
        if not isinstance(prompt, str):
            prompt = tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, tokenize=False
            )
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        name = prompt_id(ids)
        own = groups.setdefault(name, [])
        completion = tokenizer(rollout.completion, add_special_tokens=False)["input_ids"]
        if completion:
            own.append(
                SampledCompletion(
                    prompt_id=name,
                    sample=len(own),
                    prompt_ids=ids,
                    completion_ids=completion,
                    truncated=False,
                    answer=rollout.answer,
                    reward=rollout.reward,
                )
            )
    return [group for group in groups.values() if group]
