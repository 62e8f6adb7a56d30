"""`--backend vllm` on the engine at hand: accuracy with intervals, samples per second, resumption.

Part `evaluate` of vllm_colocated.py. Each of `--benchmarks` is asked once at temperature 0. The run
is broken off after a part of the samples and continued, as a killed one is. The transformers
backend, and a server of the same model where `--server` names one, answer the first questions of
the first benchmark as well; what vLLM drew of it is scored into a trace.
"""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from vllm_colocated import Colocated, limited

from acpo.evaluate.backends import Completion, Request, Sampling, SamplingError, make_backend
from acpo.evaluate.run import plan, run
from acpo.evaluate.samples import read_samples
from acpo.evaluate.summary import summarise
from acpo.evaluate.traces import trace_samples
from acpo.tasks.grading import Judges
from acpo.tasks.questions import load_questions

BESIDE, BESIDE_SECONDS = 128, 60.0
"""Questions that other backends answer, too, and how long each may take."""


class BrokenOff:
    """A backend that fails after so many samples."""

    def __init__(self, inner: Any, samples: int) -> None:
        self.inner, self.samples = inner, samples

    def settings(self) -> dict[str, Any]:
        return self.inner.settings()

    def sample(self, requests: Sequence[Request]) -> Iterator[Completion]:
        for number, completion in enumerate(self.inner.sample(requests)):
            if number == self.samples:
                raise SamplingError("broken off")
            yield completion


def measure(place: Colocated, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    args, trainer = place.args, place.trainer
    names = [name for name in args.benchmarks.split(",") if name]
    sampling = Sampling(0.0, max_tokens=trainer.max_completion_length)
    trainer.vllm_generation.sync_weights()
    source = make_backend(
        "vllm", place.model, sampling, batch_size=args.batch, engine=place.llm.llm_engine
    )
    record: dict[str, Any] = {"temperature": 0.0, "max_tokens": sampling.max_tokens}
    output = Path(args.folder) / "evals"
    with Judges() as judges:
        for number, name in enumerate(names):
            wanted = plan(load_questions(name, limit=args.limit), 1, args.limit)
            folder = output / f"vllm-{number}"
            first = max(1, len(wanted.questions) // 3)
            began = time.perf_counter()
            try:
                run([wanted], BrokenOff(source, first), judges, output=folder)
            except SamplingError:
                kept = len(read_samples(folder / f"{wanted.name}.jsonl")[1])
            half = time.perf_counter()
            run([wanted], source, judges, output=folder)
            ended = time.perf_counter()
            record[wanted.name] = {
                **_summary(folder / f"{wanted.name}.jsonl"),
                "kept_when_broken_off": kept,
                "seconds": [round(half - began, 2), round(ended - half, 2)],
                "samples_per_second": round((len(wanted.questions) - kept) / (ended - half), 2),
            }
            save(record)
        if names:
            beside = {"transformers": {"batch_size": BESIDE}}
            beside |= {"server": {"base_url": args.server, "retries": 0}} if args.server else {}
            for name, options in beside.items():
                record[name] = limited(
                    BESIDE_SECONDS,
                    functools.partial(_beside, place, names[0], judges, output / name, options),
                )
                save(record)
    if names:
        record["trace"] = _trace(place, output / "vllm-0", output / "trace")
    return record


def _summary(path: Path) -> dict[str, Any]:
    _, samples = read_samples(path)
    whole = summarise(samples, votes=False)
    kept = ("questions", "mean", "truncated", "verdicts", "tokens")
    return {"samples": len(samples), **{name: whole[name] for name in kept}}


def _beside(
    place: Colocated, name: str, judges: Judges, output: Path, options: dict[str, Any]
) -> dict[str, Any]:
    """Another backend on the first questions: transformers' weights are a second copy."""
    count = min(BESIDE, place.args.limit or BESIDE)
    wanted = plan(load_questions(name, limit=count), 1, count)
    sampling = Sampling(0.0, max_tokens=place.trainer.max_completion_length)
    kind = "openai" if "base_url" in options else "transformers"
    source = make_backend(kind, place.model, sampling, **options)
    began = time.perf_counter()
    run([wanted], source, judges, output=output)
    seconds = time.perf_counter() - began
    file = f"{wanted.name}.jsonl"
    _, ours = read_samples(output / file)
    _, theirs = read_samples(output.parent / "vllm-0" / file)
    same = sum(theirs[key]["completion"] == sample["completion"] for key, sample in ours.items())
    return {
        **_summary(output / file),
        "seconds": round(seconds, 2),
        "samples_per_second": round(len(ours) / seconds, 2),
        "same_text_as_vllm": same / len(ours),
    }


def _trace(place: Colocated, samples: Path, output: Path) -> dict[str, float]:
    """The samples that vLLM drew, scored by the model itself."""
    began = time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    trace_samples(place.model, samples, output, device=device)
    return {"seconds": round(time.perf_counter() - began, 2)}
