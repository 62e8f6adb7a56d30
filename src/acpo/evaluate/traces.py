"""Traces of what an evaluation sampled."""

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from acpo.errors import ACPOError, ACPOWarning
from acpo.evaluate.backends import Sampling
from acpo.evaluate.backends.transformers import TransformersBackend
from acpo.evaluate.samples import first_difference
from acpo.evaluate.summary import Samples, read_run
from acpo.objectives import get_method
from acpo.records import write_trace
from acpo.scoring.rollouts import SampledCompletion, Scorer
from acpo.verify.extract import THINK_OPENERS
from acpo.verify.verdict import Outcome, Verdict


def trace_samples(
    model: str,
    samples: Path,
    output: Path,
    *,
    method: str = "acpo",
    top_k: int = 5,
    device: str | None = None,
    batch_size: int = 32,
    answers: Mapping[tuple[str, str], Any] | None = None,
) -> None:
    """Score the samples of an evaluation under a model and write them as a trace.

    The policy is the one at the evaluation's temperature (1 where it took the likeliest token).
    Questions have as many samples as the one with the fewest. Done again, the trace is replaced.
    A model other than the one that sampled leaves old log-probabilities out. `answers` are gold
    answers by benchmark and question, where they are known.
    """
    runs, row = _read(samples), get_method(method)
    settings = _shared_settings(samples, {name: run[0] for name, run in runs.items()})
    sampling = Sampling(**{name: settings[name] for name in Sampling._fields})
    source = TransformersBackend(model, sampling, batch_size=batch_size, device=device)
    own = {k: settings.get(k) for k in ("model", "revision")}
    same = own == {k: source.settings().get(k) for k in own}
    if not same:
        for name, (_, found) in runs.items():
            _refuse_other_words(samples / f"{name}.jsonl", found, source, sampling)
    same = same and _drew_whole(settings)
    loaded, temperature = source.load(), sampling.temperature or 1.0
    scoring: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "batch_size": batch_size}
    scorer = Scorer(loaded, source.checkpoint.tokenizer, row, **scoring)
    vocabulary = loaded.get_output_embeddings().weight.shape[0]
    header = {"source": "eval", "model": model, "vocab_size": vocabulary, "method": method}
    header |= {"benchmarks": sorted(runs), "temperature": temperature, "top_p": sampling.top_p}
    header |= {"top_k": top_k, "max_tokens": sampling.max_tokens, "seed": settings["seed"]}
    parts = (
        (*scorer.part(rollouts, group_size=group, sampled_by_scorer=same), 0)
        for rollouts, group in _groups(runs, source, answers or {})
    )
    write_trace(output, header, parts)


def _drew_whole(settings: Mapping[str, Any]) -> bool:
    """Whether samples are draws of softmax(logits / temperature) by the code that scores them."""
    whole = settings["top_p"] == 1 and settings["temperature"] > 0
    return bool(whole and settings.get("backend") == "transformers")


def _groups(
    runs: Mapping[str, tuple[dict[str, Any], Samples]],
    source: TransformersBackend,
    answers: Mapping[tuple[str, str], Any],
) -> Iterator[tuple[list[SampledCompletion], int]]:
    """Each benchmark's completions, and how many a question has."""
    names = _prompt_ids(runs)
    for benchmark, (_, samples) in runs.items():
        questions: dict[str, list[int]] = defaultdict(list)
        for question, number in samples:
            questions[question].append(number)
        group = min(map(len, questions.values()))
        if len(samples) > group * len(questions):
            warnings.warn(
                f"{len(samples) - group * len(questions)} of {len(samples)} samples are left out: "
                f"a question has {group} only, and groups must be equal. Run the evaluation to its "
                "end",
                ACPOWarning,
                stacklevel=2,
            )
        rollouts = []
        for question, numbers in questions.items():
            prompt = source.checkpoint.tokens(samples[question, numbers[0]]["prompt"])
            answer = answers.get((benchmark, question))
            for number in sorted(numbers)[:group]:
                sample = samples[question, number]
                verdict = sample.get("verdict")
                rollouts.append(
                    SampledCompletion(
                        prompt_id=names[benchmark, question],
                        sample=number,
                        prompt_ids=prompt,
                        completion_ids=sample["ids"],
                        truncated=sample["finish"] == "length",
                        answer=None if answer is None else str(answer),
                        reward=None if verdict is None else Verdict(Outcome(verdict)).reward(),
                        verdict=verdict,
                    )
                )
        yield rollouts, group


def _read(folder: Path) -> dict[str, tuple[dict[str, Any], Samples]]:
    """Settings and samples of each benchmark."""
    runs = {}
    for name, (settings, everything) in sorted(read_run(folder).items()):
        file = folder / f"{name}.jsonl"
        found = {k: v for k, v in everything.items() if "completion" in v}
        if not found:
            raise ACPOError(f"{file} holds no samples: run the evaluation to its end")
        if not all(map(_has_ids, found.values())):
            raise ACPOError(
                f"{file}: samples without token ids ({settings.get('backend')} backend): text has "
                "several tokenisations, and only the sampled one can be scored. Evaluate with "
                "--backend transformers or vllm"
            )
        if not all({"prompt", "finish"} <= sample.keys() for sample in found.values()):
            raise ACPOError(f"{file}: samples without prompt or finish; draw them again")
        runs[name] = settings, found
    return runs


def _prompt_ids(
    runs: Mapping[str, tuple[dict[str, Any], Samples]],
) -> dict[tuple[str, str], str]:
    """A name of its own for every question: files without ids all number their rows from 0."""
    questions = [(name, question) for name, (_, found) in runs.items() for question, _ in found]
    counts = Counter(question for _, question in set(questions))
    return {
        (name, question): question if counts[question] == 1 else f"{name}/{question}"
        for name, question in questions
    }


def _shared_settings(folder: Path, runs: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """How all benchmarks were sampled; one trace has one policy."""
    names = (*Sampling._fields, "seed", "model", "revision")
    for run, settings in runs.items():
        for name in names:
            if name not in settings:
                raise ACPOError(f"{folder}/{run}.jsonl does not say its {name}; draw it again")
    if differs := first_difference(runs, names):
        first, run, name = differs
        raise ACPOError(
            f"{folder}: {first} was drawn with {name}={runs[first][name]!r}, {run} with "
            f"{runs[run][name]!r}; a trace has one policy: keep them in folders of their own"
        )
    return next(iter(runs.values()))


def _has_ids(sample: dict[str, Any]) -> bool:
    ids = sample.get("ids", [])
    return bool(ids) and all(type(token) is int and 0 <= token < 2**31 for token in ids)


def _refuse_other_words(
    file: Path, samples: Samples, source: TransformersBackend, sampling: Sampling
) -> None:
    """A model whose tokenizer reads the ids as another text than was drawn cannot score them."""
    for (question, number), sample in samples.items():
        ids = sample["ids"]
        texts = [
            str(source.checkpoint.tokenizer.decode(own, skip_special_tokens=True))
            for own in (ids, ids[:-1])  # the token that ended it is no text, special or not
        ]
        if _core(sample["completion"]) not in {_core(sampling.before_stop(t)) for t in texts}:
            raise ACPOError(
                f"{file}: the token ids of sample {number} of question {question!r} say "
                f"{texts[0]!r:.60} in this model's vocabulary, not {sample['completion']!r:.60}: "
                "it was drawn with another tokenizer; score it with a model that shares it"
            )


def _core(text: str) -> str:
    """Without what decoders and templates add or leave out: spaces, odd bytes, the first tag."""
    text = text.replace("\N{REPLACEMENT CHARACTER}", "").strip()
    for opener in THINK_OPENERS:
        text = text.removeprefix(opener).strip()
    return text
