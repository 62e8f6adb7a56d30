"""Curves with bands and the plot of differences, from the summary's numbers."""

from pathlib import Path
from typing import Any

from acpo.linefile import whole_file, write_png

PANELS = {
    "accuracy": "accuracy of rollouts",
    "entropy": "entropy of trained tokens (nats)",
    "length": "completion length (tokens)",
    "reversed": "share of reversed updates",
}
# Okabe and Ito's palette, told apart by colour-blind readers; line styles help in print.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8B8B00")
STYLES = ("-", "--", "-.", ":", "-", "--", "-.", ":")
FIRST = ("sapo", "acpo", "acpo_no_routing", "global_sg_x3", "grpo", "dapo", "8020", "gtpo")
"""Rows of the first figure; the others follow, eight at a time, with SAPO in each."""


def draw_curves(task: dict[str, Any], name: str, folder: Path) -> list[Path]:
    """PNG and PDF of every panel; returns the PNGs."""
    rows = {row["name"]: row for row in task["rows"] if row["curves"]["accuracy"]}
    if not rows:
        return []
    order = [row for row in FIRST if row in rows] + [row for row in rows if row not in FIRST]
    size = len(COLOURS)
    starts = range(1, max(len(order), 2), size - 1)
    groups = [[order[0], *order[start : start + size - 1]] for start in starts]
    paths = []
    for number, group in enumerate(groups, 1):
        stem = f"curves-{name}" + (f"-{number}" if number > 1 else "")
        paths.append(_curves([rows[row] for row in group], name, folder / f"{stem}.png"))
    return paths


def _curves(rows: list[dict[str, Any]], name: str, path: Path) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.6), layout="constrained")
    for axes, (key, label) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for row, colour, style in zip(rows, COLOURS, STYLES, strict=False):
            steps, values, low, high = (
                [point[name] for point in row["curves"][key]]
                for name in ("step", "value", "low", "high")
            )
            axes.plot(steps, values, style, color=colour, label=row["title"], linewidth=1.4)
            axes.fill_between(steps, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.set(xlabel="update", ylabel=label)
        axes.grid(alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(8, len(labels)))
    figure.suptitle(f"{name}: mean over seeds, bands are 95% intervals")
    return _save(figure, path)


def draw_differences(task: dict[str, Any], baseline: str, name: str, folder: Path) -> Path:
    """Every row's paired difference to the baseline, with both intervals."""
    from matplotlib.figure import Figure

    rows = [row for row in task["rows"] if row["difference"]]
    rows.sort(key=lambda row: row["difference"]["value"])
    figure = Figure(figsize=(7.5, 1.2 + 0.28 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        found = row["difference"]
        for shown, width, colour in ((found, 3.0, "#0072B2"), (found["bootstrap"], 1.2, "#E69F00")):
            if shown and shown["low"] is not None:
                ends = [100 * shown["low"], 100 * shown["high"]]
                axes.plot(ends, [place, place], color=colour, linewidth=width)
        axes.plot(100 * found["value"], place, "o", color="#000000", markersize=4)
    axes.axvline(0, color="#000000", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row["title"] for row in rows])
    orange = any(row["difference"]["bootstrap"] for row in rows)
    second = "; orange: over seeds and problems" if orange else ""
    axes.set_xlabel(f"percentage points, 95% over seeds{second}")
    axes.set_title(f"{name}: held-out accuracy after training, minus that of {baseline}")
    axes.grid(alpha=0.3, axis="x")
    return _save(figure, folder / f"differences-{name}.png")


def draw_pass_at(task: dict[str, Any], name: str, folder: Path) -> Path:
    """pass@k of every row over k."""
    from matplotlib.figure import Figure

    rows = [row for row in task["rows"] if row["pass_at"]]
    figure = Figure(figsize=(7.5, 4), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows):
        ks = [int(k) for k in row["pass_at"]]
        style = STYLES[place // len(COLOURS) % len(STYLES)]
        values = [100 * estimate["value"] for estimate in row["pass_at"].values()]
        axes.plot(ks, values, style, color=COLOURS[place % len(COLOURS)], label=row["title"])
    axes.set_xscale("log", base=2)
    axes.set(xlabel="k", ylabel="pass@k, percent", title=f"{name}: pass@k on held-out problems")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return _save(figure, folder / f"pass-{name}.png")


def _save(figure: Any, path: Path) -> Path:
    """PNG and PDF; the same bytes whenever they are drawn."""
    write_png(path, figure)
    with whole_file(path.with_suffix(".pdf")) as name:
        figure.savefig(name, format="pdf", metadata={"CreationDate": None})
    return path
