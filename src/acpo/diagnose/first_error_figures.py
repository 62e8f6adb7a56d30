"""The figures of the first-error analysis, drawn from its rows."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from acpo.diagnose.finding import Row
from acpo.diagnose.first_error_tables import QUANTITIES
from acpo.diagnose.style import Look, legend, letter, look, panels, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from acpo.diagnose.first_error import Aligned

LOOKS = {
    "wrong": Look(look(1).color, "-", "o"),
    "right": Look(look(2).color, "--", "s"),
}


def aligned_figure(rows: Sequence[Row], aligned: "Mapping[str, Aligned]", shown: int) -> "Figure":
    """A representative pair, means with spread, and the difference, for each quantity.

    Args:
        rows: One per quantity and offset.
        aligned: All pairs, by quantity.
        shown: The pair to show.
    """
    figure, axes = panels(3 * len(QUANTITIES), columns=3, size=(3.6, 2.5))
    letter(axes, ["one pair", "mean ± std over pairs", "wrong − right, 95% over prompts"] * 2)
    for number, (quantity, label) in enumerate(QUANTITIES.items()):
        one, mean, difference = axes[3 * number : 3 * number + 3]
        own = [row for row in rows if row["quantity"] == quantity]
        pair = aligned[quantity]
        for side, values in (("wrong", pair.wrong[shown]), ("right", pair.right[shown])):
            _line(one, pair.offsets, values, side)
        _means(mean, own)
        _difference(difference, own)
        for each in (one, mean, difference):
            each.axvline(0, color="0.3", linestyle=":", linewidth=1)
            each.set_xlabel("tokens from the first error")
        for each in (one, mean):
            each.set_ylabel(label)
            legend(each)
        difference.set_ylabel(f"difference in {quantity}")
    return figure


def _line(axes: "Axes", x: np.ndarray, y: np.ndarray, side: str) -> None:
    style = LOOKS[side]
    known = np.isfinite(y)
    axes.plot(
        x[known], y[known], color=style.color, linestyle=style.linestyle, label=side, linewidth=1.3
    )


def _means(axes: "Axes", rows: Sequence[Row]) -> None:
    t = np.array([row["t"] for row in rows])
    for side, style in LOOKS.items():
        mean = np.array([row[f"{side}_mean"] for row in rows])
        std = np.nan_to_num([row[f"{side}_std"] for row in rows])
        _line(axes, t, mean, side)
        axes.fill_between(t, mean - std, mean + std, color=style.color, alpha=0.15, linewidth=0)


def _difference(axes: "Axes", rows: Sequence[Row]) -> None:
    t = np.array([row["t"] for row in rows])
    low, high = (np.array([row[name] for row in rows]) for name in ("low", "high"))
    axes.axhline(0, color="0.6", linewidth=0.8)
    axes.fill_between(t, low, high, color=look(0).color, alpha=0.2, linewidth=0)
    axes.plot(t, [row["difference"] for row in rows], color=look(0).color, linewidth=1.3)


def profile_figure(rows: Sequence[Row]) -> "Figure":
    """Full profiles: one column of panels per prompt, one row per quantity."""
    prompts = list(dict.fromkeys(row["prompt_id"] for row in rows))
    columns = min(4, len(prompts))
    strips = -(-len(prompts) // columns)
    figure, axes = panels(2 * strips * columns, columns=columns, size=(3.0, 1.9))
    for place in range(2 * strips * columns):
        strip, column = divmod(place, columns)
        quantity = list(QUANTITIES)[strip % 2]
        number = (strip // 2) * columns + column
        if number >= len(prompts):
            axes[place].set_axis_off()
            continue
        own = [
            row
            for row in rows
            if row["prompt_id"] == prompts[number] and row["quantity"] == quantity
        ]
        _profile(axes[place], own, quantity)
        if place == 0:
            legend(axes[place])
        if quantity == "entropy":
            axes[place].set_title(plain(f"prompt {prompts[number]}", 30), fontsize=8)
    return figure


def _profile(axes: "Axes", rows: Sequence[Row], quantity: str) -> None:
    for side, style in LOOKS.items():
        own = [row for row in rows if row["side"] == side]
        if not own:
            continue
        _line(
            axes,
            np.array([row["token"] for row in own]),
            np.array([row["smoothed"] for row in own]),
            side,
        )
        axes.axvline(own[0]["error"], color=style.color, linestyle=":", linewidth=1.2)
    axes.set_ylabel(quantity)
    axes.set_xlabel("token")
