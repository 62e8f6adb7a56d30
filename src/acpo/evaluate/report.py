"""The numbers of a run or a comparison: Markdown, JSON, pictures, a comparison's LaTeX."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acpo.linefile import write_png, write_whole
from acpo.tasks import TASKS
from acpo.texts import markdown_table

_LATEX_SPECIAL = str.maketrans(
    {
        **{char: "\\" + char for char in "_%&#${}"},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    }
)
COUNTED = {"exclude": "are left out", "wrong": "count as wrong"}
"""What is said of samples that could not be drawn."""


def write_reports(summary: dict[str, Any], folder: Path) -> None:
    """Write summary.json, report.md, intervals.png and curves.png."""
    write_whole(folder / "summary.json", json.dumps(summary, indent=1) + "\n")
    write_whole(folder / "report.md", markdown(summary))
    picture(summary, folder / "intervals.png")
    draw_curves(summary, folder / "curves.png")


def markdown(summary: dict[str, Any]) -> str:
    """Scores, rates of truncation and verdicts, and a table of questions per benchmark."""
    heads = ("benchmark", "questions", "k", "mean@k", "pass@k", "majority@k")
    cells = [*score_cells(summary), ["average", "", "", interval(summary["average"]), "", ""]]
    rows = [f"# {summary['model']}", "", *markdown_table(heads, cells), ""]
    rows += ["Percent, with 95% intervals clustered by question.", ""]
    for name, entry in summary["benchmarks"].items():
        rows += [f"## {title(name)}", "", *_rate_rows(entry), ""]
        rows += _failed_rows(entry)
        parts = ("id", "correct", "decided")
        lines = ([line[part] for part in parts] for line in entry["per_question"])
        rows += [*markdown_table(("question", "correct", "decided"), lines), ""]
    return "\n".join(rows)


def score_cells(summary: dict[str, Any]) -> list[list[str]]:
    """Title, questions, k, mean@k, pass@k and majority@k of every benchmark."""
    cells = []
    for name, entry in summary["benchmarks"].items():
        scores = (entry["mean"], entry["pass"].get(str(entry["k"])), entry["majority"])
        counts = [str(entry["questions"]), str(entry["k"])]
        cells.append([title(name), *counts, *map(interval, scores)])
    return cells


def _failed_rows(entry: dict[str, Any]) -> list[str]:
    """Samples that could not be drawn, by name."""
    failed = entry["failed"]["samples"]
    if not failed:
        return []
    counted = COUNTED[entry["failed"]["counted_as"]]
    lines = [f"- {one['question']}, sample {one['sample']}: {one['reason']}" for one in failed]
    return [f"{len(failed)} samples could not be drawn and {counted}:", "", *lines, ""]


def told_undecided(undecided: Mapping[str, int], samples: int) -> str | None:
    """What is said of samples that no score counts; None where there are none."""
    if not undecided:
        return None
    kinds = ", ".join(f"{outcome} {count}" for outcome, count in undecided.items())
    count = sum(undecided.values())
    return f"{count} of {samples} samples could not be judged ({kinds}) and are left out"


def told_lacking(lacking: Mapping[str, int]) -> str:
    """What is said of a run that is not whole; nothing where it is."""
    return ", ".join(f"{count} {what}" for what, count in lacking.items())


def _rate_rows(entry: dict[str, Any]) -> list[str]:
    shown = [k for k in entry["pass"] if int(k).bit_count() == 1 or int(k) == entry["k"]]
    passes = ", ".join(f"pass@{k} {interval(entry['pass'][k])}" for k in shown)
    verdicts = ", ".join(
        f"{name} {share:.1%}" for name, share in entry["verdicts"].items() if share
    )
    rows = [f"- {passes or 'no decided samples'}", f"- verdicts: {verdicts or 'none'}"]
    if said := told_undecided(entry["undecided"], entry["samples"]):
        rows.append(f"- {said}")
    if entry["truncated"] is not None:
        rows.append(f"- cut off at the token limit: {entry['truncated']:.1%}")
    if entry["tokens"] is not None:
        rows.append(f"- mean length: {entry['tokens']:.0f} tokens")
    return rows


def tabular(names: str, heads: Sequence[str], rows: Sequence[str]) -> str:
    """A table in LaTeX: its columns of names, then one centred column per score."""
    bold = " & ".join(rf"\textbf{{{latex_text(head)}}}" for head in heads)
    layout = names + "c" * (len(heads) - len(names))
    top = [rf"\begin{{tabular}}{{@{{}}{layout}@{{}}}}", r"\toprule", rf"{bold} \\", r"\midrule"]
    return "\n".join([*top, *rows, r"\bottomrule", r"\end{tabular}", ""])


def picture(summary: dict[str, Any], path: Path) -> None:
    """mean@k of every benchmark with its interval."""
    from matplotlib.figure import Figure

    entries = [(name, e["mean"]) for name, e in summary["benchmarks"].items() if e["mean"]]
    figure = Figure(figsize=(6.4, 0.9 + 0.42 * max(len(entries), 1)), layout="constrained")
    axes = figure.add_subplot()
    for height, (_, mean) in enumerate(reversed(entries)):
        value = 100 * mean["value"]
        reach = [[value - 100 * mean["low"]], [100 * mean["high"] - value]]
        axes.errorbar([value], [height], xerr=reach, fmt="o", color="#1f4e79", capsize=3)
    axes.set_yticks(range(len(entries)), [title(name) for name, _ in reversed(entries)])
    axes.set(xlim=(0, 100), xlabel="mean@k, percent, 95% interval")
    axes.set_title(str(summary["model"]), parse_math=False)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    write_png(path, figure)


CURVES = {"pass": ("pass@k", "#1f4e79"), "majority_at": ("maj@k", "#c8553d")}


def draw_curves(summary: dict[str, Any], path: Path) -> None:
    """pass@k and maj@k for every k, one panel per benchmark that has any, with bands of 95%."""
    from matplotlib.figure import Figure

    entries = [
        (name, entry)
        for name, entry in summary["benchmarks"].items()
        if entry["k"] > 1 and any(any(entry[key].values()) for key in CURVES)
    ]
    if not entries:
        return
    figure = Figure(figsize=(3.4 * len(entries), 3.2), layout="constrained")
    panels = figure.subplots(1, len(entries), squeeze=False, sharey=True)[0]
    for axes, (name, entry) in zip(panels, entries, strict=True):
        for key, (label, color) in CURVES.items():
            known = [(int(k), value) for k, value in entry[key].items() if value]
            if not known:
                continue
            ks = [k for k, _ in known]
            low, middle, high = (
                [100 * value[part] for _, value in known] for part in ("low", "value", "high")
            )
            axes.plot(ks, middle, label=label, color=color, marker=".")
            axes.fill_between(ks, low, high, color=color, alpha=0.18, linewidth=0)
        axes.set(xlabel="k", title=title(name), ylim=(0, 100))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("percent, 95% bands")
    max(panels, key=lambda axes: len(axes.lines)).legend()
    write_png(path, figure)


def comparison_markdown(result: dict[str, Any]) -> str:
    """A comparison as a table, and what besides the model differs."""
    heads = ("benchmark", "questions", "A - B", "A better", "B better", "sign test p")
    cells = []
    for name, entry in result["benchmarks"].items():
        difference, p_value = interval(entry["difference"], sign=True), f"{entry['p_value']:.3g}"
        counts = (entry["better"], entry["worse"])
        cells.append([title(name), entry["questions"], difference, *counts, p_value])
    cells.append(["average", "", interval(result["average"], sign=True), "", "", ""])
    rows = [f"A = {result['a']}, B = {result['b']}", "", *markdown_table(heads, cells)]
    for name, entry in result["benchmarks"].items():
        if entry["settings_that_differ"]:
            keys = ", ".join(entry["settings_that_differ"])
            rows += ["", f"{title(name)}: besides the model, A and B differ in {keys}."]
        for run, lacking in entry["lacking"].items():
            if lacking:
                rows += ["", f"{title(name)}, {run.upper()}: {told_lacking(lacking)}."]
    return "\n".join(rows)


def comparison_latex(result: dict[str, Any]) -> str:
    """A comparison as one row of differences with their intervals."""
    differences = [entry["difference"] for entry in result["benchmarks"].values()]
    cells = " & ".join(map(_latex_interval, [*differences, result["average"]]))
    return tabular("", [*map(title, result["benchmarks"]), "Average"], [rf"{cells} \\"])


def latex_text(text: str) -> str:
    """Text with what LaTeX would read escaped."""
    return text.translate(_LATEX_SPECIAL)


def title(name: str) -> str:
    """What tables call a benchmark."""
    return TASKS[name].title if name in TASKS else name


def interval(estimate: Mapping[str, Any] | None, *, sign: bool = False, unknown: str = "-") -> str:
    """`42.5 [30.1, 55.9]`, in percent; the value alone where it has no interval."""
    if estimate is None:
        return unknown
    form = "+.1f" if sign else ".1f"
    value = f"{100 * estimate['value']:{form}}"
    if estimate["low"] is None:
        return value
    return f"{value} [{100 * estimate['low']:{form}}, {100 * estimate['high']:{form}}]"


def _latex_interval(estimate: dict[str, float]) -> str:
    value, low, high = (100 * estimate[key] for key in ("value", "low", "high"))
    return f"${value:+.2f}$ [${low:+.2f}$, ${high:+.2f}$]"
