"""`acpo import`: what other trainers wrote about their rollouts, scored under a model, as a trace.

verl's and TRL's files hold texts, which are tokenised anew: the tokens are those of the text, not
always those that were drawn, and the header says so. prime-rl's and slime's hold the tokens that
were drawn and, where they were kept, their log-probabilities then. Files are data from anybody:
slime's are pickles, opened as plain values or not at all.
"""

import math
import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from acpo.checkpoints import unread
from acpo.errors import ACPOError, ACPOWarning, reason
from acpo.evaluate.backends import Sampling
from acpo.evaluate.backends.transformers import TransformersBackend
from acpo.jsonl import read_jsonl
from acpo.objectives import get_method
from acpo.records import write_trace
from acpo.scoring.rollouts import Part, SampledCompletion, Scorer, prompt_id
from acpo.texts import whole_characters
from acpo.trace.write import print_trace, prompt_tokens


@dataclass(frozen=True)
class ForeignRollout:
    """A completion as another trainer wrote it down: texts, messages, or token ids."""

    step: int
    prompt: str | list[Any]
    completion: str | list[int]
    reward: float | None = None
    answer: str | None = None
    truncated: bool = False
    old_logp: list[float] | None = None

    def __post_init__(self) -> None:
        """Refuse what no trainer writes: TypeError, ValueError."""
        if type(self.step) is not int or not 0 <= self.step < 2**31:
            raise ValueError(f"step={self.step!r:.50}")
        if isinstance(self.completion, list):
            ids = (*self.prompt, *self.completion)
            if not all(type(token) is int and 0 <= token < 2**31 for token in ids):
                raise TypeError("token ids must be whole numbers")
            if self.old_logp is not None and len(self.old_logp) != len(self.completion):
                raise ValueError("there must be a log-probability for each token")
        elif not isinstance(self.completion, str) or not (
            isinstance(self.prompt, str) or all(isinstance(own, dict) for own in self.prompt)
        ):
            raise TypeError("prompt and completion must be texts, or the prompt messages")
        if self.reward is not None:
            reward = float(self.reward)
            object.__setattr__(self, "reward", reward if math.isfinite(reward) else None)
        if self.answer is not None:
            object.__setattr__(self, "answer", str(self.answer))


def import_rollouts(
    source: Path,
    output: Path,
    *,
    model: str,
    method: str = "acpo",
    rewards: Sequence[str] = (),
    temperature: float = 1.0,
    top_k: int = 5,
    device: str | None = None,
    batch_size: int = 32,
) -> None:
    """Score another trainer's rollouts and write them as a trace, one part per step.

    Of TRL's tables, the columns `rewards` are added up to the reward, each times its weight
    (`NAME=0.5`, 1 without one); none are all of fractions.
    """
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise ACPOError(f"{output} holds a trace already, or other files: name another --output")
    steps = read_rollouts(source, rewards)
    row = get_method(method)
    scored_at: dict[str, Any] = {"temperature": temperature, "top_k": top_k}
    sampling = Sampling(temperature, chat=False)
    backend = TransformersBackend(model, sampling, batch_size=batch_size, device=device)
    tokenizer, loaded = backend.checkpoint.tokenizer, backend.load()
    scorer = Scorer(loaded, tokenizer, row, batch_size=batch_size, **scored_at)
    everything = [rollout for own in steps.values() for rollout in own if rollout.completion]
    _refuse_unread(everything, tokenizer, model)
    _tell_of_lost_marks(everything, tokenizer)
    has_old = all(rollout.old_logp is not None for rollout in everything)
    header = {
        "source": "import",
        "retokenised": any(isinstance(rollout.completion, str) for rollout in everything),
        "model": model,
        "vocab_size": loaded.get_output_embeddings().weight.shape[0],
        "method": method,
        **scored_at,
    }

    def scored(own: list[SampledCompletion], old_logp: list[float]) -> Part:
        rows, columns = scorer.part(own, group_size=len(own), sampled_by_scorer=False)
        return rows, columns | ({"old_logp": np.array(old_logp)} if has_old else {})

    groups = ((step, _groups(steps[step], tokenizer)) for step in sorted(steps))
    found = ((step, [scored(*group) for group in own]) for step, own in groups)
    write_trace(output, header, ((*_joined(parts), step) for step, parts in found if parts))
    print_trace(output)


def _refuse_unread(rollouts: list[ForeignRollout], tokenizer: Any, model: str) -> None:
    """A policy does not write what its tokenizer has no tokens for."""
    texts = [  # without halves of characters, which any policy may write
        one.completion.encode(errors="ignore").decode().replace("\N{REPLACEMENT CHARACTER}", "")
        for one in rollouts
        if isinstance(one.completion, str)
    ]
    share, said = unread(texts, tokenizer) if texts else (0.0, "")
    if share:
        raise ACPOError(
            f"model {model!r} cannot read the completions, its tokenizer makes {said}: score them "
            "with a model that shares the tokenizer of the one that wrote them"
        )


def _tell_of_lost_marks(rollouts: list[ForeignRollout], tokenizer: Any) -> None:
    """verl writes no special tokens: a chat's prompt is not what the policy read."""
    prompts = [one.prompt for one in rollouts if isinstance(one.prompt, str)]
    marks = tokenizer.all_special_tokens
    if prompts and tokenizer.chat_template and not any(m in own for own in prompts for m in marks):
        warnings.warn(
            "no prompt has a special token, and the model has a chat template: verl leaves them "
            "out, and numbers after prompts without them are not quite the policy's",
            ACPOWarning,
            stacklevel=3,
        )


def _joined(parts: list[Part]) -> Part:
    """Groups of completions as one part of a trace."""
    columns = [own for _, own in parts]
    whole = {key: np.concatenate([own[key] for own in columns]) for key in columns[0]}
    return [row for rows, _ in parts for row in rows], whole


def read_rollouts(source: Path, rewards: Sequence[str] = ()) -> dict[int, list[ForeignRollout]]:
    """Rollouts by step; `rewards` as `import_rollouts` takes them."""
    steps: dict[int, list[ForeignRollout]] = {}
    for pattern, read in FORMATS.items():
        files = sorted(source.glob(pattern))
        if source.is_file() and source.match(pattern.rpartition("/")[2]):
            files = [source]
        by_trl = read is _read_trl
        if files and rewards and not by_trl:
            raise ACPOError(f"--reward {rewards[0]}: {source} is not TRL's; leave it out")
        for file in files:
            try:
                for rollout in read(file, rewards) if by_trl else read(file):
                    steps.setdefault(rollout.step, []).append(rollout)
            except ACPOError:
                raise
            except UNREADABLE as error:
                raise ACPOError(f"{file} is not of its trainer ({reason(error)})") from error
        if files:
            return _each_once(steps) if by_trl else steps
    raise ACPOError(
        f"{source} is none of verl's rollout_data_dir (N.jsonl), prime-rl's token_exports "
        "(step_N/rank_N.jsonl), slime's debug rollout data (*.pt) and TRL's completions "
        "(completions_*.parquet)"
    )


UNREADABLE = (
    *(OSError, ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError),
    *(EOFError, OverflowError, RuntimeError, pa.ArrowException, pickle.UnpicklingError),
)
"""What files that are not what they say raise."""


def _rows(
    file: Path, trainer: str, read: Callable[[dict[str, Any]], ForeignRollout]
) -> Iterator[ForeignRollout]:
    """One rollout per line."""
    for number, row in enumerate(read_jsonl(file), start=1):
        try:
            yield read(row)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ACPOError(f"{file}: row {number} is not {trainer}'s ({reason(error)})") from error


def _read_verl(file: Path) -> Iterator[ForeignRollout]:
    """One line per completion, texts."""
    own = int(file.stem) if file.stem.isdigit() else 0

    def read(row: dict[str, Any]) -> ForeignRollout:
        step = row.get("step", own)
        return ForeignRollout(step, row["input"], row["output"], row.get("score"), row.get("gts"))

    return _rows(file, "verl", read)


def _prime_rl_row(row: dict[str, Any]) -> ForeignRollout:
    """A sequence, sampled from the first trained token on; where none is trained, nothing is.

    The t-th of `inference_logprobs` is that of token t, given those before it.
    """
    mask, tokens = row["loss_mask"], row["token_ids"]
    if len(mask) != len(tokens) or any(own not in (0, 1) for own in mask):
        raise ValueError("loss_mask must have a 0 or a 1 for each of token_ids")
    trained = [place for place, own in enumerate(mask) if own] or [len(mask)]
    first, last = trained[0], trained[-1] + 1
    if isinstance(row.get("rewards"), str):
        raise TypeError("rewards must be a list of numbers")
    rewards = [value for value in row.get("rewards") or () if value is not None]
    old = (row.get("inference_logprobs") or [])[first:last]
    return ForeignRollout(
        row.get("export_step", row["step"]),
        tokens[:first],
        tokens[first:last],
        rewards[-1] if rewards else None,
        old_logp=_known(old, mask[first:last]),
    )


def _known(logps: list[Any] | None, mask: list[Any] | None) -> list[float] | None:
    """Log-probabilities of the policy that sampled, where it sampled all: not what tools said."""
    if not logps or None in logps or not all(mask or (True,)):
        return None
    known = [float(value) for value in logps]
    if not all(value <= 1e-3 for value in known):  # rounding may leave a little; NaN is none
        raise ValueError("log-probabilities must not be above 0")
    return known


def _read_slime(file: Path) -> Iterator[ForeignRollout]:
    """A dictionary of plain values that torch saved; anything else in it is refused unopened."""
    import torch

    pack = torch.load(file, map_location="cpu", weights_only=True)
    name = re.search(r"\d+", file.stem)
    step = pack.get("rollout_id", int(name[0]) if name else 0)
    for sample in pack["samples"]:
        length, tokens = sample["response_length"], sample["tokens"]
        if type(length) is not int or not 0 <= length <= len(tokens):
            raise ValueError(f"response_length={length!r:.50}")
        reward = sample.get("reward")
        first = len(tokens) - length
        yield ForeignRollout(
            int(step),
            tokens[:first],
            tokens[first:],
            reward if isinstance(reward, int | float) else None,
            sample.get("label"),
            truncated=sample.get("status") == "truncated",
            old_logp=_known(sample.get("rollout_log_probs"), sample.get("loss_mask")),
        )


def _read_trl(file: Path, rewards: Sequence[str]) -> Iterator[ForeignRollout]:
    """One row per completion, texts or messages; what `log_extra` wrote stands beside rewards."""
    table = pq.read_table(file)
    fractions = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    known = [name for name in fractions if name != "advantage"]
    weights = _weights(rewards) or dict.fromkeys(known, 1.0)
    if missing := [name for name in weights if name not in known]:
        raise ACPOError(f"--reward {missing[0]}: {file} has {', '.join(known) or 'none'}")
    if len(known) > 1 and not rewards:
        warnings.warn(
            f"the reward is {' + '.join(known)}, every column of fractions; --reward NAME or "
            "NAME=WEIGHT, once or more, says which are",
            ACPOWarning,
            stacklevel=2,
        )
    for row in table.to_pylist():
        values = [x * row[name] for name, x in weights.items() if row[name] is not None]
        said = row["completion"]
        if isinstance(said, list):
            said = _only_text(said, file)
        yield ForeignRollout(row["step"], row["prompt"], said, sum(values) if values else None)


def _only_text(messages: list[dict[str, Any]], file: Path) -> str:
    """The text of a lone message that has nothing else: tokens of others cannot be told."""
    message = messages[0] if messages else {"content": ""}
    beside = {key for key, value in message.items() if value} - {"role", "content"}
    if len(messages) > 1 or beside or not isinstance(message["content"], str):
        raise ACPOError(
            f"{file}: a completion of several messages, or with thoughts or tool calls beside "
            "its text: the tokens that the model wrote cannot be told; acpo's trainer keeps "
            "them (record_rollouts: true)"
        )
    return message["content"]


def _weights(rewards: Sequence[str]) -> dict[str, float]:
    """The weight of each column that `--reward NAME` or `NAME=WEIGHT` names."""
    weights = {}
    for said in rewards:
        name, equals, number = said.partition("=")
        try:
            weights[name] = float(number) if equals else 1.0
        except ValueError:
            weights[name] = math.nan
        if not math.isfinite(weights[name]):
            raise ACPOError(f"--reward {said}: {number!r} is no weight; say NAME or NAME=0.5")
    return weights


def _each_once(steps: dict[int, list[ForeignRollout]]) -> dict[int, list[ForeignRollout]]:
    """Without the steps that hold the rollout of the step before: TRL writes it at every log."""
    texts = {step: [(one.prompt, one.completion) for one in steps[step]] for step in sorted(steps)}
    before = dict(zip([*texts][1:], texts.values(), strict=False))
    return {step: steps[step] for step in texts if texts[step] != before.get(step)}


FORMATS: dict[str, Callable[..., Iterator[ForeignRollout]]] = {
    "**/rank_*.jsonl": partial(_rows, trainer="prime-rl", read=_prime_rl_row),
    "**/completions_*.parquet": _read_trl,
    "*.jsonl": _read_verl,
    "*.parquet": _read_trl,
    "*.pt": _read_slime,
}
"""By the names of a trainer's files; the first that a folder holds is read."""


Group = tuple[list[SampledCompletion], list[float]]
"""Completions of one prompt, and their old log-probabilities, as far as there are any."""


def _groups(rollouts: list[ForeignRollout], tokenizer: Any) -> Iterator[Group]:
    """Completions of one prompt together, with their old log-probabilities, in order of prompts."""
    groups: dict[str, Group] = {}
    for rollout in rollouts:
        ids: Any = rollout.prompt
        completion = rollout.completion
        if isinstance(completion, str):
            ids = prompt_tokens(ids, tokenizer)
            text = whole_characters(completion)
            completion = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        name = prompt_id(ids)
        own, old = groups.setdefault(name, ([], []))
        sampled = SampledCompletion(name, len(own), ids, completion, rollout.truncated)
        own.append(replace(sampled, answer=rollout.answer, reward=rollout.reward))
        old += rollout.old_logp or []
    # Empty completions have no token, and a reward that the others are compared with.
    yield from (group for group in groups.values() if any(one.completion_ids for one in group[0]))
