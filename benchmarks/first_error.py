"""Does entropy rise after the first error of the quickstart model? Before and after training.

    acpo train recipes/quickstart.yaml
    python benchmarks/first_error.py --out results/first-error

Beside `acpo diagnose first-error` there are two controls. `same_form` leaves out wrong completions
that differ from the solution in more than result digits: after a missing or doubled character every
token is compared with one of another kind. `same_fact` holds every step after an error against the
same step with the same arithmetic fact (`7*8`) where no error had been made: right completions are
there only where the facts on the right path are easy enough; those on a wrong path may be any.
"""

import argparse
import csv
import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from environment import environment

from acpo.annotate.annotations import Annotations
from acpo.annotate.evidence import Accept, aligned_pairs
from acpo.annotate.pairs import select
from acpo.cli import app
from acpo.diagnose.clusters import effect
from acpo.diagnose.error_alignment import align, measure
from acpo.records import Trace
from acpo.tasks.chain import STEP_LENGTH, ChainProblem

ROOT = Path(__file__).resolve().parents[1]
WINDOW = 8  # tokens: two steps
WORDS = ("quantity", "effect", "exact")
PACKAGED = "package:acpo/tasks/checkpoints/chain"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "first-error")
    parser.add_argument("--trained", default="runs/quickstart")
    parser.add_argument("--traces", type=Path, default=Path("traces"))
    parser.add_argument("--prompts", type=int, nargs=2, default=[200, 1000])
    parser.add_argument("--seeds", type=int, nargs=2, default=[7, 8])
    arguments = parser.parse_args()
    record = {"environment": environment("torch", "transformers", "numpy"), "runs": []}
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, model in (("packaged", PACKAGED), ("trained", arguments.trained)):
        for prompts, seed in zip(arguments.prompts, arguments.seeds, strict=True):
            run = one_run(arguments, name, model, prompts, seed)
            record["runs"].append(run)
            print(json.dumps(run, indent=1))
            (arguments.out / "summary.json").write_text(json.dumps(record, indent=1) + "\n")


def one_run(
    arguments: argparse.Namespace, name: str, model: str, prompts: int, seed: int
) -> dict[str, Any]:
    trace, out = arguments.traces / f"{name}-{seed}", arguments.out / f"{name}-{seed}"
    annotations = arguments.traces / f"{name}-{seed}.jsonl"
    if not trace.exists():
        options = f"--task chain --n {prompts} --group 8 --max-tokens 24 --seed {seed}"
        call("trace", model, *options.split(), "--batch-size", "128", "--output", str(trace))
    call("annotate", "propose", str(trace), "--annotator", "exact", "-o", str(annotations))
    places = ["--annotations", str(annotations), "--window", str(WINDOW), "--smooth", "1"]
    call("diagnose", "first-error", str(trace), *places, "--output", str(out))
    opened = Trace.open(trace)
    return {
        "model": name,
        "seed": seed,
        "prompts": prompts,
        "accuracy": float(np.mean(opened.rollouts["reward"].to_numpy())),
        "mean_entropy": float(opened.tokens("entropy")["entropy"].mean()),
        "aligned": effects(out / "first-error-effects.csv"),
        "same_form": formed(opened, Annotations.read(annotations)),
        "same_fact": matched(opened),
    }


def call(*arguments: str) -> None:
    print("acpo", *arguments, flush=True)
    sys.argv = ["acpo", *arguments]  # what the summaries name as their command
    app(standalone_mode=False)


def effects(file: Path) -> list[dict[str, Any]]:
    with file.open() as rows:
        return [
            plain({k: v if k in WORDS else float(v or "nan") for k, v in row.items()})
            for row in csv.DictReader(rows)
        ]


def formed(trace: Trace, annotations: Annotations) -> dict[str, Any]:
    """After minus before, wrong minus right, of wrong completions of the solution's form."""
    pairs, _ = aligned_pairs(select(trace), annotations, Accept.SOUND)
    kept = [
        pair
        for pair in pairs
        if same_form(pair.wrong.completion, ChainProblem.parse(pair.wrong.prompt).solution)
    ]
    change = measure(align(trace, kept, trace.tokens("entropy")["entropy"], WINDOW), 1)["change"]
    return plain(effect(change, [pair.prompt_id for pair in kept])._asdict())


def matched(trace: Trace) -> dict[str, Any]:
    """Entropy at result digits after an error, minus that of the same step and fact without one."""
    entropy = trace.tokens("entropy")["entropy"]
    on_course: dict[tuple[int, str, str], list[float]] = defaultdict(list)
    after: list[tuple[str, tuple[int, str, str], float]] = []
    for row, one in enumerate(trace.rollouts.to_pylist()):
        problem = ChainProblem.parse(one["prompt"])
        text = one["completion"]
        if not same_form(text, problem.solution):
            continue
        error = problem.first_error(text)
        for step, (operator, digit) in enumerate(problem.operations):
            at = STEP_LENGTH * (step + 1)
            fact = (step, text[at - STEP_LENGTH], f"{operator}{digit}")
            value = float(entropy[trace.starts[row] + at])
            if error is None or step <= error:
                on_course[fact].append(value)
            else:
                after.append((one["prompt_id"], fact, value))
    known = [(prompt, value - np.mean(on_course[f])) for prompt, f, value in after if on_course[f]]
    found = effect(np.array([value for _, value in known]), [prompt for prompt, _ in known])
    named = {key: value for key, value in found._asdict().items() if key != "pairs"}
    return {"steps_after_an_error": len(after), "matched": len(known), **plain(named)}


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN."""
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in values.items()}


def same_form(text: str, solution: str) -> bool:
    """Whether a completion differs from the solution in digits after `=` only."""
    results = range(STEP_LENGTH, len(solution), STEP_LENGTH)
    return len(text) == len(solution) and all(
        a == b or (i in results and b.isdigit())
        for i, (a, b) in enumerate(zip(solution, text, strict=True))
    )


if __name__ == "__main__":
    main()
