"""Study L's answer from its kept runs: `python benchmarks/law.py`.

Reads the runs of law-0.1m, law-1m, law-10m and law-carry and writes law.md and law.png, the
same bytes from the same runs. The rule is fitted on 0.1M and 1M and tested on 10M and the second
task, as docs/protocol.md says.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from law_rules import (
    PREDICTORS,
    Fit,
    Setting,
    fit_rule,
    known_predictors,
    pooled,
    rank_correlation,
    tested,
    told,
)

from acpo.compare.figures import COLOURS
from acpo.compare.plan import BASELINE, MATCHED, STUDY
from acpo.compare.statistics import SeedEstimate, mean_over_seeds
from acpo.compare.summary import seed_differences
from acpo.errors import ACPOError
from acpo.jsonl import read_jsonl
from acpo.texts import markdown_table

ROOT = Path(__file__).resolve().parents[1]
FITTED, TESTED = ("law-0.1m", "law-1m"), ("law-10m", "law-carry")
PLACE = ("study", "start", "per rollout")
FIRST_UPDATES = 10
OURS = ("score_normalised", "score_baseline")
SURE, EVEN = 0.1, 0.2
"""Of the claims: the delta below which ACPO loses, the variation below which ours makes no odds."""


def read_settings(folder: Path) -> list[Setting]:
    """Every setting of a study that has runs of SAPO."""
    runs: dict[str, dict[tuple[str, str, int], Any]] = defaultdict(dict)
    for number, run in enumerate(read_jsonl(folder / "runs.jsonl"), 1):
        spec = run.get("spec") or {}
        if spec.get("phase") not in (STUDY, MATCHED):
            continue
        key = spec["phase"], spec["row"], spec["seed"]
        if key in runs[spec["task"]]:
            raise ACPOError(
                f"{folder}/runs.jsonl:{number}: {run['run']} is there twice; remove one"
            )
        runs[spec["task"]][key] = run
    settings = (_setting(folder.name, task, found) for task, found in sorted(runs.items()))
    return [one for one in settings if one is not None]


def _setting(study: str, task: str, runs: Mapping[tuple[str, str, int], Any]) -> Setting | None:
    start, _, ratio = task.rpartition("-")
    base = {key[2]: run for key, run in runs.items() if key[:2] == (STUDY, BASELINE)}
    base = {seed: run for seed, run in base.items() if not run.get("failed")}
    if not base:
        return None
    benefits: dict[str, dict[str, dict[int, float]]] = {STUDY: {}, MATCHED: {}}
    failed: dict[str, set[str]] = {STUDY: set(), MATCHED: set()}
    for (phase, row, seed), run in sorted(runs.items()):
        theirs = base.get(seed)
        if row == BASELINE or theirs is None or theirs["start_model"] != run["start_model"]:
            continue
        if run.get("failed"):
            failed[phase].add(row)
            continue
        (difference,) = seed_differences({seed: (run, theirs)})
        benefits[phase].setdefault(row, {})[seed] = difference
    predictors = {}
    for name in PREDICTORS:
        values = [_early(run["curve"], name) for _, run in sorted(base.items())]
        if all(value is not None for value in values):
            predictors[name] = fmean(value for value in values if value is not None)
    matched = {row: kept for row, kept in benefits[MATCHED].items() if row not in failed[MATCHED]}
    return Setting(
        study, start, ratio, predictors, benefits[STUDY], matched, frozenset(failed[STUDY])
    )


def _early(curve: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """A logged number over the first updates; None where it was not logged."""
    found = [entry.get(name) for entry in curve if entry["step"] <= FIRST_UPDATES]
    known = [value for value in found if value is not None]
    return fmean(known) if known else None


def write_answer(settings: Sequence[Setting], out: Path) -> None:
    """`law.md` and `law.png`."""
    out.mkdir(parents=True, exist_ok=True)
    fits = fit_rows(settings)
    (out / "law.md").write_text(answer_text(settings, fits), encoding="utf-8")
    draw(settings, fits, out / "law.png")


def fit_rows(settings: Sequence[Setting]) -> dict[str, Fit]:
    """The rule of every row, from the settings it may be fitted on."""
    rows = dict.fromkeys(row for one in settings for row in one.tuned)
    fitted = [one for one in settings if one.study in FITTED]
    return {row: fit_rule(fitted, row) for row in rows}


def answer_text(settings: Sequence[Setting], fits: Mapping[str, Fit]) -> str:
    """The whole page."""
    lines = [
        "# When to use which row",
        "",
        f"{len(settings)} settings. A benefit is held-out accuracy minus SAPO's in points, paired "
        "by seed, each row at its own rate; +- is Student's 95% over seeds. A rule is one "
        "threshold on one predictor, the best on 0.1M and 1M; it is offered where no more than 5% "
        "of random orders of the starts fit as well, and holds where its gain over what was best "
        "there without a rule (always or never) is above 0 in both tests.",
        "",
        *_verdicts(fits, settings),
        "",
        *_missing(settings),
        "## Registered claims",
        "",
        *_claims(settings),
        "",
        "## Every setting",
        "",
        *_table(settings, list(fits)),
        "",
        *_matched(settings),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _verdicts(fits: Mapping[str, Fit], settings: Sequence[Setting]) -> list[str]:
    lines = []
    for row, fit in fits.items():
        cells = [""] * len(TESTED)
        if fit.offered:
            found = [tested(_of(settings, study), row, fit) for study in TESTED]
            cells = [f"{word} {points(gain)}".strip() for word, gain in found]
        gain = f"{100 * fit.gain:+.1f}" if fit.rule else ""
        lines.append([row, answer(row, fit, settings), gain, f"{fit.p:.3f}", *cells])
    return markdown_table(["row", "answer", "gain where fitted", "p", *TESTED], lines)


def _of(settings: Sequence[Setting], study: str) -> list[Setting]:
    return [one for one in settings if one.study == study]


def answer(row: str, fit: Fit, settings: Sequence[Setting]) -> str:
    """What a reader is told of a row."""
    if fit.rule is None:
        return f"too few settings yet ({fit.settings})"
    if fit.offered:
        words = {tested(_of(settings, study), row, fit)[0] for study in TESTED}
        held = "holds" if words == {"holds"} else "not confirmed"
        return f"rule, {held}: use it where {fit.rule}"
    overall = pooled([one for one in settings if one.study in FITTED], row)
    assert overall is not None
    word = told(overall, above="better on the whole", below="worse on the whole")
    return f"no rule; {word}, {points(overall)}"


def _missing(settings: Sequence[Setting]) -> Iterator[str]:
    absent = [PREDICTORS[name] for name in PREDICTORS if name not in known_predictors(settings)]
    if absent:
        yield f"Not logged by every run, so not among the predictors: {', '.join(absent)}."
        yield ""
    for one in settings:
        if one.failed:
            yield (
                f"{one.study}, {one.start}, {one.ratio}: runs of {', '.join(sorted(one.failed))} "
                "failed, which have no benefit there."
            )
            yield ""
    of_study: dict[str, int] = defaultdict(int)
    for one in settings:
        most = max(map(len, one.tuned.values()), default=0)
        of_study[one.study] = max(most, of_study[one.study])
    for one in settings:
        whole = of_study[one.study]
        short = [f"{row} {len(kept)}" for row, kept in one.tuned.items() if len(kept) < whole]
        if short:
            yield (
                f"{one.study}, {one.start}, {one.ratio} is provisional: of {whole} seeds, paired "
                f"so far {', '.join(short)}."
            )
            yield ""


def _claims(settings: Sequence[Setting]) -> Iterator[str]:
    for words, chosen in (
        (f"delta below {SURE:g}", [one for one in settings if _has(one, "delta", below=SURE)]),
        (f"delta from {SURE:g}", [one for one in settings if _has(one, "delta", least=SURE)]),
    ):
        yield f"- ACPO where {words}: {_count(chosen, 'acpo')}."
    for row in OURS:
        found, p = rank_correlation(settings, row, "score_variation")
        if found != found:
            yield f"- {row}: no correlation with {PREDICTORS['score_variation']} can be told yet."
            continue
        yield (
            f"- {row}: benefit against {PREDICTORS['score_variation']}: rank correlation "
            f"{found:+.2f}, one-sided p {p:.3f}."
        )
        even = [one for one in settings if _has(one, "score_variation", below=EVEN)]
        yield f"- {row} where that is below {EVEN:g}: {_count(even, row)}."


def _has(
    one: Setting, name: str, *, least: float = float("-inf"), below: float = float("inf")
) -> bool:
    return name in one.predictors and least <= one.predictors[name] < below


def _count(settings: Sequence[Setting], row: str) -> str:
    there = [
        mean_over_seeds([*one.tuned[row].values()])
        for one in settings
        if one.benefit(row) is not None
    ]
    if not there:
        return "no settings"
    words = [told(one, above="above", below="below") for one in there]
    return (
        f"{len(there)} settings, {words.count('below')} below SAPO, {words.count('above')} above, "
        f"{words.count('not told apart')} not told apart; mean below 0 in "
        f"{sum(one.value < 0 for one in there)}"
    )


def _table(settings: Sequence[Setting], rows: Sequence[str]) -> list[str]:
    lines = []
    for one in settings:
        known = [one.predictors.get(name) for name in PREDICTORS]
        cells = ["" if value is None else f"{value:.3g}" for value in known]
        cells += ["failed" if row in one.failed else _benefit(one.tuned, row) for row in rows]
        lines.append([one.study, one.start, one.ratio, *cells])
    return markdown_table([*PLACE, *PREDICTORS.values(), *rows], lines)


def _matched(settings: Sequence[Setting]) -> list[str]:
    rows = list(dict.fromkeys(row for one in settings for row in one.matched))
    if not rows:
        return []
    lines = [
        [one.study, one.start, one.ratio, *(_benefit(one.matched, row) for row in rows)]
        for one in settings
        if one.matched
    ]
    return ["## At SAPO's update lengths", "", *markdown_table([*PLACE, *rows], lines)]


def _benefit(found: Mapping[str, Mapping[int, float]], row: str) -> str:
    return points(mean_over_seeds([*found[row].values()])) if found.get(row) else ""


def points(estimate: SeedEstimate | None) -> str:
    """A share as points with its interval."""
    if estimate is None:
        return ""
    if estimate.low is None or estimate.high is None:
        return f"{100 * estimate.value:+.1f}"
    return f"{100 * estimate.value:+.1f} +-{50 * (estimate.high - estimate.low):.1f}"


def draw(settings: Sequence[Setting], fits: Mapping[str, Fit], path: Path) -> None:
    """Benefit of every row against every predictor; where a rule says to use it is shaded."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    rows = list(fits)
    names = [name for name in PREDICTORS if any(name in one.predictors for one in settings)]
    figure = Figure(figsize=(3.1 * len(names), 2.4 * len(rows) + 0.8), layout="constrained")
    grid = figure.subplots(len(rows), len(names), squeeze=False)
    studies = list(dict.fromkeys(one.study for one in settings))
    for row, line in zip(rows, grid, strict=True):
        for name, axes in zip(names, line, strict=True):
            for study, colour in zip(studies, COLOURS[1:], strict=False):
                _scatter(axes, settings, study, row, name, colour)
            axes.axhline(0, color="#000000", linewidth=0.8)
            if name in ("delta", "entropy"):
                axes.set_xscale("log")
                axes.xaxis.set_minor_formatter(NullFormatter())
            rule = fits[row].rule
            if rule is not None and rule.predictor == name and fits[row].offered:
                low, high = axes.get_xlim()
                ends = (low, rule.threshold) if rule.below else (rule.threshold, high)
                axes.axvspan(*ends, color="#009E73", alpha=0.12, linewidth=0)
                axes.set_xlim(low, high)
            axes.grid(alpha=0.3)
            axes.set_xlabel(f"{PREDICTORS[name]}, updates 1-{FIRST_UPDATES}", fontsize=9)
        line[0].set_ylabel(f"{row} - SAPO, points", fontsize=9)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=max(1, len(labels)))
    figure.savefig(path, dpi=120, metadata={"Software": None})


def _scatter(
    axes: Any, settings: Sequence[Setting], study: str, row: str, name: str, colour: str
) -> None:
    shown = [
        (one.predictors[name], mean_over_seeds([*one.tuned[row].values()]))
        for one in settings
        if one.study == study and name in one.predictors and one.benefit(row) is not None
    ]
    axes.errorbar(
        [x for x, _ in shown],
        [100 * y.value for _, y in shown],
        yerr=[100 * (y.high - y.value) if y.high is not None else 0.0 for _, y in shown],
        fmt="o" if study in FITTED else "s",
        markerfacecolor=colour if study in FITTED else "none",
        markersize=4,
        color=colour,
        linewidth=1,
        label=f"{study} ({'fitted' if study in FITTED else 'tested'})",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=ROOT / "results" / "compare")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "law")
    arguments = parser.parse_args()
    folders = [arguments.runs / name for name in (*FITTED, *TESTED)]
    there = [folder for folder in folders if (folder / "runs.jsonl").is_file()]
    settings = [one for folder in there for one in read_settings(folder)]
    if not settings:
        raise SystemExit(f"no runs of SAPO under {arguments.runs}/law-*; run the studies first")
    write_answer(settings, arguments.out)
    print(f"{arguments.out}/law.md and law.png: {len(settings)} settings")


if __name__ == "__main__":
    main()
