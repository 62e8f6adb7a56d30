"""How every figure looks: in print, for colour-blind readers, and the same bytes each time."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from acpo.diagnose.finding import one_line
from acpo.diagnose.series import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours that the colour-blind can tell apart."""
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
REVERSED = "#f3e3e3"
"""Ground of the region where an update is reversed."""

RC: dict[Any, Any] = {
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,
    "figure.dpi": 150,
}


class Look(NamedTuple):
    """Colour, line and marker of a series: any one of them tells it apart."""

    color: str
    linestyle: str | tuple[int, tuple[int, ...]]
    marker: str


def look(number: int) -> Look:
    kinds = len(OKABE_ITO)
    return Look(OKABE_ITO[number % kinds], LINES[number % kinds], MARKERS[number % kinds])


def panels(count: int, *, columns: int, size: tuple[float, float]) -> "tuple[Figure, list[Axes]]":
    """A figure of `count` panels, each `size` inches; one that is alone in its row fills it."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = -(-count // columns)
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
        grid = figure.add_gridspec(rows, columns)
        places = [grid[i // columns, i % columns] for i in range(count)]
        if columns > 1 and count % columns == 1:
            places[-1] = grid[rows - 1, :]
        return figure, [figure.add_subplot(place) for place in places]


def draw_series(axes: "Axes", series: Series, label: str, style: Look) -> None:
    """Its points, and over them the means of its bins."""
    x, y = series.sample()
    x = np.clip(x, series.axis.edges[0], series.axis.edges[-1])
    faint = float(np.clip(6 / np.sqrt(len(x) + 1), 0.15, 0.6))
    axes.scatter(x, y, s=4, color=style.color, alpha=faint, linewidths=0, rasterized=True)
    axes.plot(
        series.axis.centres,
        series.means(),
        color=style.color,
        linestyle=style.linestyle,
        marker=style.marker,
        markersize=3.5,
        linewidth=1.3,
        label=f"{label} ({series.tokens:,})",
    )


def say_empty(axes: "Axes", text: str) -> None:
    """Why a panel shows nothing."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color="0.4")


def legend(axes: "Axes", **options: Any) -> None:
    """A legend, if there is something to tell apart."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(handles, labels, fontsize=7, framealpha=0.9, **options)


def plain(text: str, limit: int = 48) -> str:
    """A name from data, so that it is drawn and not taken for a formula."""
    return one_line(text, limit).replace("$", r"\$")


def render_png(figure: "Figure") -> bytes:
    """The figure as a PNG that depends on nothing but what is drawn."""
    import matplotlib

    stream = BytesIO()
    with matplotlib.rc_context(RC):
        figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()


def save_pdf(figure: "Figure", path: Path) -> None:
    """The same as a PDF."""
    import matplotlib

    nothing = dict.fromkeys(("CreationDate", "Creator", "Producer"))
    with matplotlib.rc_context(RC):
        figure.savefig(path, format="pdf", metadata=nothing)


def letter(axes: "Sequence[Axes]", titles: Sequence[str]) -> None:
    """(a), (b), ... before the panels' titles."""
    for character, one, title in zip("abcdefgh", axes, titles, strict=False):
        one.set_title(f"({character}) {title}", loc="left", fontsize=9)
