"""From samples on disk to the numbers of one run."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acpo.errors import ACPOError
from acpo.evaluate import statistics
from acpo.evaluate.samples import Key, read_samples, require_one_model
from acpo.evaluate.statistics import QuestionCounts
from acpo.intervals import Estimate
from acpo.tasks import BENCHMARKS, PAPER
from acpo.tasks.task import GOLD_JUDGES
from acpo.verify.verdict import UNDECIDED, Outcome

Samples = dict[Key, dict[str, Any]]


def question_counts(samples: Samples, *, failed: str = "exclude") -> list[QuestionCounts]:
    """Counts per question, in the order of the file.

    `failed` says what a sample is that could not be drawn: `exclude`, or `wrong`.
    """
    grouped: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for (question, _), sample in samples.items():
        wrong = failed == "wrong" and is_failed(sample)
        grouped[question].append({"verdict": Outcome.INCORRECT} if wrong else sample)
    return [_count(question, group) for question, group in grouped.items()]


def is_failed(sample: dict[str, Any]) -> bool:
    """Whether a sample could not be drawn."""
    return "failed" in sample and "completion" not in sample


def lacking(samples: Samples) -> dict[str, int]:
    """Samples not drawn or without a verdict yet, and questions with fewer than others."""
    counts = Counter(question for question, _ in samples)
    most = max(counts.values(), default=0)
    found = {
        "samples that could not be drawn": sum(map(is_failed, samples.values())),
        "samples without a verdict": sum(
            "completion" in sample and "verdict" not in sample for sample in samples.values()
        ),
        f"questions with fewer than {most} samples": sum(n < most for n in counts.values()),
    }
    return {what: count for what, count in found.items() if count}


def undecided(samples: Samples) -> dict[str, int]:
    """How many samples could not be judged, by verdict."""
    verdicts = Counter(str(sample.get("verdict")) for sample in samples.values())
    return {outcome: verdicts[outcome] for outcome in sorted(UNDECIDED) if verdicts[outcome]}


def _count(question: str, group: list[dict[str, Any]]) -> QuestionCounts:
    decided = [s for s in group if "verdict" in s and s["verdict"] not in UNDECIDED]
    correct = sum(sample["verdict"] == Outcome.CORRECT for sample in decided)
    wrong = Counter(
        sample["answer"]
        for sample in decided
        if sample["verdict"] != Outcome.CORRECT and sample.get("answer") is not None
    )
    return QuestionCounts(question, correct, len(decided), tuple(sorted(wrong.values())))


def summarise(samples: Samples, *, votes: bool, failed: str = "exclude") -> dict[str, Any]:
    """Every number of one benchmark, ready for JSON; a majority where answers can be compared."""
    counts = question_counts(samples, failed=failed)
    judged = [sample for sample in samples.values() if "verdict" in sample]
    k = max((entry.decided for entry in counts), default=0)
    sizes = range(1, k + 1)
    majority = {str(n): _plain(statistics.majority_at(counts, n)) for n in sizes if votes}
    tokens = [sample["tokens"] for sample in judged if sample.get("tokens") is not None]
    return {
        "questions": len(counts),
        "samples": len(judged),
        "k": k,
        "mean": _plain(statistics.mean_accuracy(counts)),
        "pass": {str(n): _plain(statistics.pass_at(counts, n)) for n in sizes},
        "majority": majority.get(str(k)),
        "majority_at": majority,
        "truncated": _share(sum(s.get("finish") == "length" for s in judged), len(judged)),
        "verdicts": {
            str(outcome): _share(sum(s["verdict"] == outcome for s in judged), len(judged))
            for outcome in Outcome
        },
        "undecided": undecided(samples),
        "tokens": round(sum(tokens) / len(tokens), 1) if tokens else None,
        "failed": {
            "counted_as": failed,
            "samples": [
                {"question": question, "sample": index, "reason": sample["failed"]}
                for (question, index), sample in samples.items()
                if is_failed(sample)
            ],
        },
        "per_question": [
            {"id": entry.id, "correct": entry.correct, "decided": entry.decided} for entry in counts
        ],
    }


def read_run(folder: Path) -> dict[str, tuple[dict[str, Any], Samples]]:
    """Settings and samples of every benchmark in the folder of a run, the paper's ones first."""
    if not folder.is_dir():
        raise ACPOError(f"{folder}: no such folder: give one that `acpo eval` wrote")
    found = {path.stem: read_samples(path) for path in sorted(folder.glob("*.jsonl"))}
    if not found:
        raise ACPOError(f"{folder}: no samples in it: give a folder that `acpo eval` wrote")
    require_one_model(folder, {name: settings for name, (settings, _) in found.items()})
    order = [name for name in (*PAPER, *BENCHMARKS) if name in found]
    return {name: found[name] for name in dict.fromkeys([*order, *found])}


def summarise_run(folder: Path, *, failed: str = "exclude") -> dict[str, Any]:
    """The summary of a folder of samples: settings, numbers per benchmark, and their average."""
    benchmarks = {}
    model = ""
    for name, (settings, samples) in read_run(folder).items():
        model = settings.get("model", "")
        votes = settings.get("judge") in GOLD_JUDGES or any(
            sample.get("answer") is not None for sample in samples.values()
        )
        numbers = summarise(samples, votes=votes, failed=failed)
        benchmarks[name] = {"settings": settings, **numbers}
    means = [entry["mean"] for entry in benchmarks.values()]
    average = _plain(statistics.average([Estimate(**m) for m in means])) if all(means) else None
    return {"model": model, "benchmarks": benchmarks, "average": average}


def compare_runs(a: Path, b: Path, *, failed: str = "exclude") -> dict[str, Any]:
    """A minus B per benchmark that both have, paired by question, and the average difference."""
    ours, theirs = read_run(a), read_run(b)
    compared: dict[str, Any] = {}
    differences = []
    for name in ours:
        if name not in theirs:
            continue
        (settings_a, samples_a), (settings_b, samples_b) = ours[name], theirs[name]
        if settings_a.get("data") != settings_b.get("data"):
            raise ACPOError(f"{name}: {a} and {b} ran on different questions: they do not pair")
        result = statistics.compare(
            question_counts(samples_a, failed=failed), question_counts(samples_b, failed=failed)
        )
        if result is None:
            continue
        differing = unlike([settings_a, settings_b])
        differences.append(result.difference)
        entry = {**result._asdict(), "difference": _plain(result.difference)}
        lacks = {"a": lacking(samples_a), "b": lacking(samples_b)}
        compared[name] = {**entry, "settings_that_differ": differing, "lacking": lacks}
    if not compared:
        raise ACPOError(f"{a} and {b} share no benchmark with samples: nothing to compare")
    average = _plain(statistics.average(differences))
    return {"a": str(a), "b": str(b), "benchmarks": compared, "average": average}


def unlike(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """What runs of one benchmark were set to differently, but for the model."""
    names = sorted({name for one in settings for name in one} - {"model", "revision"})
    first = settings[0]
    return [name for name in names if any(one.get(name) != first.get(name) for one in settings)]


def _plain(estimate: Estimate | None) -> dict[str, float] | None:
    return None if estimate is None else estimate._asdict()


def _share(count: int, total: int) -> float | None:
    return count / total if total else None
