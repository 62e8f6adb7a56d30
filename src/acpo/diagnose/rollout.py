"""Figure "surrogate and normalized Shannon entropy": δ and H / log|V| along one completion."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from acpo.diagnose.stream import parts_of
from acpo.diagnose.style import legend, look
from acpo.errors import ACPOError
from acpo.records import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WINDOW = 50


@dataclass(frozen=True)
class Profile:
    """One completion.

    Attributes:
        number: of the completion in the trace.
        delta: per token.
        entropy: H / log|V| per token.
        window: tokens in a moving average.
    """

    number: int
    delta: np.ndarray
    entropy: np.ndarray
    window: int

    @property
    def correlation(self) -> float:
        return _correlation(self.delta, self.entropy)

    @property
    def smooth_correlation(self) -> float:
        return _correlation(*(moving_average(x, self.window) for x in (self.delta, self.entropy)))

    def rows(self) -> list[dict[str, Any]]:
        """One row per token; moving averages where a whole window has passed."""
        missing = [math.nan] * (self.window - 1)
        smooth = [[*missing, *moving_average(x, self.window)] for x in (self.delta, self.entropy)]
        columns = (self.delta, self.entropy, *smooth)
        names = ("delta", "entropy", "delta_average", "entropy_average")
        return [
            {"token": i} | {name: float(x) for name, x in zip(names, values, strict=True)}
            for i, values in enumerate(zip(*columns, strict=True))
        ]


def longest(trace: Trace) -> int:
    """Number of the longest completion, the first of equals."""
    best, number, seen = -1, 0, 0
    for part in parts_of(trace):
        lengths = part.rollouts["tokens"].to_numpy()
        if len(lengths) and lengths.max() > best:
            best, number = int(lengths.max()), seen + int(lengths.argmax())
        seen += len(lengths)
    return number


def profile(trace: Trace, number: int, support: int) -> Profile:
    """δ and normalised entropy of a completion.

    Raises:
        ACPOError: There is no such completion.
    """
    seen = 0
    for part in parts_of(trace):
        count = part.parts[0]["rollouts"]
        if 0 <= number - seen < count:
            here = range(number - seen, number - seen + 1)
            table = part.table("log_pmax", "entropy", rollouts=here)
            delta = -np.expm1(np.minimum(_float64(table["log_pmax"]), 0.0))
            entropy = _float64(table["entropy"]) / math.log(support)
            usable = np.isfinite(delta) & np.isfinite(entropy)
            length = int(usable.sum())
            window = WINDOW if length >= 2 * WINDOW else max(1, length // 5)
            return Profile(number, delta[usable], entropy[usable], window)
        seen += count
    raise ACPOError(f"--rollout {number}: the trace has completions 0 to {seen - 1}")


def _float64(column: Any) -> np.ndarray:
    return column.to_numpy().astype(np.float64)


def moving_average(values: np.ndarray, window: int) -> np.ndarray:
    """Means of each `window` consecutive values."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    return (sums[window:] - sums[:-window]) / window


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def draw_profile(axes: "Axes", one: Profile) -> None:
    """Raw values thin, moving averages thick."""
    names = (r"$\delta$", r"$H_{\mathrm{norm}} = H/\log|\mathcal{V}|$")
    for i, (name, values) in enumerate(zip(names, (one.delta, one.entropy), strict=True)):
        style = look(i)
        axes.plot(values, color=style.color, alpha=0.3, linewidth=0.6)
        axes.plot(
            np.arange(one.window - 1, len(values)),
            moving_average(values, one.window),
            color=style.color,
            linestyle=style.linestyle,
            label=f"{name}, {one.window}-token average",
        )
    axes.set(xlabel="token", ylabel="uncertainty")
    legend(axes, loc="best")
