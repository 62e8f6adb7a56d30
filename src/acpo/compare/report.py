"""The summary as Markdown, LaTeX and a page. The paper's numbers have columns of their own."""

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from acpo.compare.figures import draw_curves, draw_differences, draw_pass_at
from acpo.compare.summary import NOTHING, UNSETTLED, VERDICTS
from acpo.evaluate.report import interval, latex_text, markdown_table
from acpo.htmlpage import html_page
from acpo.linefile import write_whole

percent = functools.partial(interval, unknown="")

PAPER = {
    "grpo": 22.60,
    "dapo": 24.89,
    "8020": 26.02,
    "gtpo": 27.21,
    "sapo": 29.06,
    "acpo_no_routing": 30.31,
    "acpo": 34.28,
    "fixed": 26.12,
    "positive_only": 28.58,
    "nonpositive_only": 27.65,
    "shannon": 26.68,
    "shannon_offset": 25.19,
    "global_sg": 27.30,
    "global_sg_offset": 24.75,
}
"""Mean@8 on AIME24 of Qwen3-8B-Base in the ACPO paper, percent; not measured by us."""
PAPER_HEAD = "AIME24, Qwen3-8B-Base (paper, not measured here)"
"""Head of the column of the paper's numbers."""
MATCHED = (
    "Each update of these rows moved the weights as far as SAPO's of the same seed and number did, "
    "in the direction of the row's own Adam step: what differs is direction, not scale."
)


def write_report(summary: dict[str, Any], folder: Path) -> None:
    """Write summary.json, report.md, table.tex, figures and page.html."""
    write_whole(folder / "summary.json", json.dumps(summary, indent=1) + "\n")
    figures: list[Path] = []
    for name, task in summary["tasks"].items():
        figures += draw_curves(task, name, folder)
        if any(row["difference"] for row in task["rows"]):
            figures.append(draw_differences(task, summary["baseline"], name, folder))
        if any(len(row["pass_at"]) > 1 for row in task["rows"]):
            figures.append(draw_pass_at(task, name, folder))
    write_whole(folder / "report.md", markdown(summary))
    write_whole(folder / "table.tex", latex(summary))
    write_whole(folder / "page.html", page(summary, figures))


def markdown(summary: dict[str, Any]) -> str:
    """The whole report as text."""
    lines = [f"# {summary['title']}", ""]
    if summary["note"]:
        lines += [summary["note"].strip(), ""]
    for name, task in summary["tasks"].items():
        lines += [f"## {name}", "", _start_line(task), ""]
        lines += [*markdown_table(*_table(task["rows"])), ""]
        lines += [*remarks(summary, task), ""]
        lines += [*markdown_table(*_side_table(task)), ""]
        if any((row["difference"] or {}).get("pass_at") for row in task["rows"]):
            lines += ["Differences to SAPO in pass@k, paired:", ""]
            lines += [*markdown_table(*_pass_table(task)), ""]
        if task["matched"]:
            lines += [f"### {name}, updates as long as SAPO's", ""]
            lines += [*markdown_table(*_table(task["matched"])), ""]
            lines += [MATCHED, ""]
        sweep = summary["sweep"]
        if not sweep or len(sweep["learning_rates"]) == 1:
            continue
        if task["sweep_of"] != name:
            lines += [f"Learning rates are those chosen on {task['sweep_of']}.", ""]
        else:
            title = "Sweep (accuracy of the last quarter of rollouts, mean over sweep seeds):"
            lines += [title, "", *markdown_table(*_sweep_table(task, sweep)), ""]
    lines += ["## How it was made", "", *_provenance(summary), ""]
    return "\n".join(lines)


def cells(row: dict[str, Any]) -> dict[str, str]:
    """A row of the table as text, by the heads of its columns."""
    rate = "" if row["learning_rate"] is None else f"{row['learning_rate']:g}"
    seeds = str(len(row["seeds"]))
    seeds += f" ({row['failed']} failed)" if row["failed"] else ""
    seeds += f" ({row['missing']} missing)" if row["missing"] else ""
    paper, other = PAPER.get(row["name"]), row["difference"] or {}
    effect = other.get("effect_size")
    return {
        "rank": str(row["rank"] or ""),
        "row": row["title"],
        "learning rate": rate + (" (edge)" if row["at_edge"] else ""),
        "seeds": seeds,
        "accuracy": percent(row["accuracy"]),
        "gain over start": percent(row["gain"], sign=True),
        "difference to SAPO": percent(row["difference"], sign=True),
        "over seeds and problems": percent(other.get("bootstrap"), sign=True).partition(" ")[2],
        "effect size": "" if effect is None else f"{effect:+.1f}",
        "seeds above": f"{other['won']} of {other['seeds']}" if other else "",
        "p (Holm)": _probability(row["p_holm"]),
        "verdict": row["verdict"],
        PAPER_HEAD: "" if paper is None else f"{paper:.2f}",
    }


def _probability(p: float | None) -> str:
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def ordered(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows by rank, those without a result last."""
    return sorted(rows, key=lambda row: (row["rank"] or 1_000, row["name"]))


Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Head and lines of cells."""


def _table(rows: Sequence[dict[str, Any]], cells: Callable[..., dict[str, str]] = cells) -> Table:
    lines = [cells(row) for row in ordered(rows)]
    return list(lines[0]), [list(line.values()) for line in lines]


def _side_table(task: dict[str, Any]) -> Table:
    """Everything but the primary outcome."""
    ks = list(dict.fromkeys(k for row in task["rows"] for k in row["pass_at"]))

    def side(row: dict[str, Any]) -> dict[str, str]:
        ends = {name: row["ends"][name] for name in ("entropy", "length")}
        difference = row["difference"] or {}
        return {
            "row": row["title"],
            "area under the curve": percent(row["area"]),
            "difference to SAPO in it": percent(difference.get("area"), sign=True),
            "collapsed": str(row["collapsed"]),
            "signed-rank p": _probability(difference.get("signed_rank_p")),
            **{f"{n} at the end": f"{end['value']:.3g}" if end else "" for n, end in ends.items()},
            **{f"pass@{k}": percent(row["pass_at"].get(k)) for k in ks},
        }

    return _table(task["rows"], side)


def _pass_table(task: dict[str, Any]) -> Table:
    """pass@k beside SAPO's, where the study measures it by itself."""
    rows = [row for row in task["rows"] if row["difference"]]
    ks = list(dict.fromkeys(k for row in rows for k in row["difference"]["pass_at"]))

    def differences(row: dict[str, Any]) -> dict[str, str]:
        apart = row["difference"]["pass_at"]
        return {
            "row": row["title"],
            **{f"pass@{k}": percent(apart.get(k), sign=True) for k in ks},
        }

    return _table(rows, differences)


def _start_line(task: dict[str, Any]) -> str:
    start = percent(task["start"]) or "not measured"
    seeds = ", ".join(map(str, task["seeds"]))
    options = "".join(f", {k}={v}" for k, v in task["options"].items())
    return (
        f"Accuracy of the model as it came: {start}. {task['updates']} updates per run{options}. "
        f"Seeds {seeds}."
    )


def remarks(summary: dict[str, Any], task: dict[str, Any]) -> list[str]:
    """What the numbers allow to be said, and what not."""
    rows = [row for row in task["rows"] if row["accuracy"]]
    verdicts = {
        word: [row["title"] for row in task["rows"] if row["verdict"] == word] for word in VERDICTS
    }
    said = [
        f"Percent, mean over seeds, 95% Student intervals over seeds. Differences are paired: runs "
        f"of one seed share prompts, rollout randomness, evaluation problems and start. With "
        f"{_compared(task)}, about "
        f"{0.05 * task['family']:.1f} of the 95% intervals would exclude 0 by chance alone; "
        "Holm's p allows for that, and the verdict is its. The second interval draws seeds and "
        "problems anew; the effect size is Hedges' g of the paired differences.",
    ]
    if task["unlearnt"]:
        said.append(
            f"- **no verdicts**: rows are told apart only where SAPO and GRPO gain at least "
            f"{100 * task['least_gain']:g} points over the start, with intervals above 0; not so "
            f"far: {', '.join(task['unlearnt'])}"
        )
    for word, names in verdicts.items():
        if names or word in ("better", "worse", NOTHING):
            said.append(f"- {word}: {'; '.join(names) or 'none'}")
    said += _caveats(task, verdicts)
    learnt = [row["title"] for row in rows if row["gain"] and (row["gain"]["low"] or 0) > 0]
    said.append(f"- gained over the start (95% interval above 0): {'; '.join(learnt) or 'none'}")
    for row in rows:
        if row["to_control"]:
            # Without routing, gradient reaches modes that were not sampled, at w = 1 too.
            why = " (what steps away from w = 1 contribute)" if row["name"] == "acpo" else ""
            said.append(
                f"- {row['title']} minus the control {summary['control']}{why}, each at its own "
                f"learning rate: {percent(row['to_control'], sign=True)}"
            )
    edge = [row["title"] for row in rows if row["at_edge"]]
    if edge:
        said.append(
            f"- best at the end of the sweep's range, perhaps better beyond it: {'; '.join(edge)}"
        )
    return said


def _compared(task: dict[str, Any]) -> str:
    """How many comparisons Holm's p allows for, and how many of them are still to be made."""
    family, missing = task["family"], task["family"] - task["comparisons"]
    if not missing:
        return f"{family} rows compared with SAPO"
    return f"{family} rows to compare with SAPO, {missing} of them without runs for it"


def _caveats(task: dict[str, Any], verdicts: dict[str, list[str]]) -> list[str]:
    """What must be known before the table is believed."""
    said = []
    if any(verdicts[word] for word in UNSETTLED.values()):
        said.append(
            "- not settled: the 95% interval excludes 0 and the test that allows for all rows does "
            "not; whoever asked about this row alone, before seeing the table, may go by the first"
        )
    failed = [row["title"] for row in task["rows"] if row["failed"]]
    if failed:
        said.append(
            "- failed runs are in no mean, which flatters their rows, so these get no verdict "
            f"(where SAPO is one of them, the others lack its seeds): {'; '.join(failed)}"
        )
    if any(row["missing"] for row in task["rows"]):
        said.append(
            "- runs are missing: means may be over different seeds, so ranks are provisional; "
            "differences are over the seeds a row shares with SAPO"
        )
    if len(task["start_models"]) > 1:
        said.append(
            f"- runs started from {len(task['start_models'])} different models, sweeps and starts "
            "counted; only those that started from the same are paired"
        )
    if len(task["held_out_sets"]) > 1:
        said.append(
            f"- runs were measured on {len(task['held_out_sets'])} different sets of held-out "
            "problems; only those measured on the same are paired"
        )
    if task["mixed_seeds"]:
        said.append(
            "- runs of one seed trained on different problems, and only those that trained on the "
            f"same are paired: seeds {', '.join(map(str, task['mixed_seeds']))}"
        )
    if task["unmatched"]:
        said.append(
            "- no run can match SAPO's updates where it failed or they were not measured, as "
            f"under FSDP: seeds {', '.join(map(str, task['unmatched']))}"
        )
    return said


def _sweep_table(task: dict[str, Any], sweep: dict[str, Any]) -> Table:
    everyones = {f"{rate:g}" for rate in sweep["learning_rates"]}
    rates = sorted(everyones.union(*(row["sweep"] for row in task["rows"])), key=float)
    lines = []
    for row in task["rows"]:
        chosen = None if row["learning_rate"] is None else f"{row['learning_rate']:g}"
        scores = []
        for rate in rates:
            text = "missing" if rate in everyones else ""
            if rate in row["sweep"]:
                score = row["sweep"][rate]
                text = "failed" if score is None else f"{100 * score:.1f}"
            scores.append(f"**{text}**" if rate == chosen else text)
        lines.append([row["title"], *scores])
    return ["row", *rates], lines


def _provenance(summary: dict[str, Any]) -> list[str]:
    machines, versions = (
        "; ".join(", ".join(f"{name} {value}" for name, value in one.items()) for one in entries)
        for entries in (summary["hardware"], summary["versions"])
    )
    lines = [
        f"    {summary['command']}",
        "",
        f"{summary['runs']} runs of {', '.join(summary['recipes'])}, {summary['tokens']:,} tokens, "
        f"{summary['run_seconds']:,.0f} s of run time.",
        f"Hardware: {machines}. Versions: {versions}.",
    ]
    sweep = summary["sweep"]
    if sweep and len(sweep["learning_rates"]) == 1:
        apart = f"; the {sweep['share']:.0%} of the training problems that one takes are left out"
        own = "" if sweep["endless"] else apart
        lines.append(f"Every row at {sweep['learning_rates'][0]:g}, without a sweep{own}.")
    elif sweep:
        share = f"{sweep['share']:.0%} of the training problems, which no study run sees"
        problems = "problems made from them" if sweep["endless"] else share
        lines.append(
            f"Learning rates: {', '.join(f'{r:g}' for r in sweep['learning_rates'])}, chosen per "
            f"row on seeds {', '.join(map(str, sweep['seeds']))} and {problems}; "
            f"{sweep['updates']} updates per run, and up to {sweep['extend']} rates more beyond an "
            "end while the best lies there."
        )
        shorter = sweep["updates"] < max(task["updates"] for task in summary["tasks"].values())
        if shorter:
            lines.append(
                "Sweep runs are shorter than the study's: a rate that leads early may fall back."
            )
    return lines


def latex(summary: dict[str, Any]) -> str:
    """One table per task; the paper's column stands apart, behind a rule."""
    parts = ["% made by `acpo compare`; the last column is the paper's and was not measured here"]
    for name, task in summary["tasks"].items():
        parts += [
            f"% {name}",
            r"\begin{tabular}{@{}lrrr|r@{}}",
            r"\toprule",
            r"Row & learning rate & accuracy & difference to SAPO & \textit{paper: AIME24} \\",
            r"\midrule",
        ]
        for row in ordered(task["rows"]):
            line = cells(row)
            names = ("row", "learning rate", "accuracy", "difference to SAPO", PAPER_HEAD)
            parts.append(" & ".join(latex_text(line[name]) for name in names) + r" \\")
        parts += [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(parts)


_STYLE = """
th,td{text-align:right}
th:nth-child(2),td:nth-child(2){text-align:left}
:is(h2 + p,h3) + table :is(th,td):last-child{background:#f3eee0;border-left:2px solid #a08a4a}
@media (prefers-color-scheme:dark){
:is(h2 + p,h3) + table :is(th,td):last-child{background:#2b2718}}
"""
"""The last column of a table of outcomes is the paper's, and looks it."""


def page(summary: dict[str, Any], figures: Sequence[Path]) -> str:
    """The report as one HTML file that needs nothing else, figures included."""
    shown = (f"![{path.stem}]({path.name})\n" for path in figures)
    images = {path.name: path.read_bytes() for path in figures}
    text = "\n".join([markdown(summary), *shown])
    return html_page(text, images, title=summary["title"], style=_STYLE)
