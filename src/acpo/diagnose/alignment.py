"""Table "cumulative coverage": how near the sampled token is to the mode."""

from typing import TYPE_CHECKING

import numpy as np

from acpo.diagnose.figures import legend, look, panels
from acpo.diagnose.report import Finding, Table, percent
from acpo.diagnose.tokens import chunks, describe
from acpo.intervals import student_quantile
from acpo.records import Trace, TraceError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THRESHOLDS = (1e-6, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
PAPER = (83.90, 83.93, 84.07, 84.81, 86.53, 89.81, 92.48, 96.13, 100.00)
"""What the paper's table says, percent. Shown beside nothing of ours."""


BRANCHES = {"all": -2, "Â > 0": 1, "Â < 0": -1, "Â = 0": 0}
"""Tokens by the sign of their advantage, as `branch_of` numbers them; `all` are all."""

Coverage = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Share within each threshold, lower and upper end of its interval."""


def branch_of(advantage: np.ndarray) -> np.ndarray:
    """The sign of each advantage; 2 where there is none."""
    return np.where(np.isnan(advantage), 2, np.sign(advantage)).astype(np.int64)


def alignment(trace: Trace) -> Finding:
    """Measure the trace.

    Raises:
        ACPOError: The trace lacks columns or usable tokens.
    """
    counts, left_out = _count(trace)
    total = counts["all"][1]
    if not total.sum():
        raise TraceError(f"{trace.path}: none of its {left_out} tokens has usable statistics")
    shares = {name: clustered_share(*own) for name, own in counts.items() if own[1].sum()}
    coverage = shares["all"][0]
    rows = [
        {
            "branch": name,
            "threshold": threshold,
            "coverage": share[i],
            "low": low[i],
            "high": high[i],
            "tokens": int(counts[name][0][:, i].sum()),
        }
        for name, (share, low, high) in shares.items()
        for i, threshold in enumerate(THRESHOLDS)
    ]
    facts = [
        f"{percent(coverage[0])} of {int(total.sum()):,} sampled tokens are the policy's mode "
        f"(gap ≤ 1e-6), {percent(coverage[4])} lie within 0.1 of it."
    ]
    branches = [
        f"{percent(shares[name][0][0])} of {int(counts[name][1].sum()):,} with {name}"
        for name in shares.keys() - {"all"}
    ]
    if branches:
        facts.append(f"The mode, by the completion's advantage: {', '.join(sorted(branches))}.")
    if len(total) > 1:
        facts.append(f"Intervals are 95%, clustered by prompt ({len(total):,} prompts).")
    if left_out:
        facts.append(f"{left_out:,} tokens without finite log-probabilities were left out.")
    return Finding(
        name="alignment",
        title="Cumulative coverage of probability gaps",
        source=describe(trace),
        reading=(
            "Share of tokens whose probability is within a threshold of the mode's. The first row "
            "is the share of mode-aligned tokens, to which the aligned analysis applies; routing "
            "handles the rest, which the branches do not share alike: Â is the advantage of the "
            "token's completion."
        ),
        facts=facts,
        tables=[_ours(shares), _papers()],
        rows=rows,
        figure=_figure(shares),
    )


def _count(trace: Trace) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], int]:
    """By branch and per prompt: tokens within each threshold, tokens; and tokens left out."""
    within = np.zeros((len(BRANCHES), 0, len(THRESHOLDS)), dtype=np.int64)
    total = np.zeros((len(BRANCHES), 0), dtype=np.int64)
    left_out = 0
    for chunk in chunks(trace, "logp", "log_pmax"):
        left_out += chunk.left_out
        if not len(chunk):
            continue
        new = max(0, int(chunk.prompt.max()) + 1 - total.shape[1])
        total = np.pad(total, ((0, 0), (0, new)))
        within = np.pad(within, ((0, 0), (0, new), (0, 0)))
        prompts = total.shape[1]
        gap = np.abs(np.exp(chunk.columns["log_pmax"]) - np.exp(chunk.columns["logp"]))
        branch = branch_of(chunk.advantage)
        for b, sign in enumerate(BRANCHES.values()):
            own = branch == sign if sign > -2 else np.ones(len(gap), dtype=bool)
            total[b] += np.bincount(chunk.prompt[own], minlength=prompts)
            for i, threshold in enumerate(THRESHOLDS):
                near = chunk.prompt[own & (gap <= threshold)]
                within[b, :, i] += np.bincount(near, minlength=prompts)
    used = {name: total[b] > 0 for b, name in enumerate(BRANCHES)}
    found = {n: (within[b][used[n]], total[b][used[n]]) for b, n in enumerate(BRANCHES)}
    return found, left_out


def clustered_share(within: np.ndarray, total: np.ndarray, *, most: float | None = 1.0) -> Coverage:
    """Means over all tokens with 95% intervals; tokens of one prompt are not independent.

    Args:
        within: `[prompts, thresholds]` tokens counted, or sums of what is averaged.
        total: `[prompts]` tokens.
        most: what no mean exceeds; None where there is no such bound.

    Returns:
        Share, lower and upper end, `[thresholds]` each; NaN ends with a single prompt.
    """
    share = within.sum(0) / total.sum()
    prompts = len(total)
    if prompts < 2:
        nothing = np.full_like(share, np.nan)
        return share, nothing, nothing
    residual = within - share * total[:, None]
    error = np.sqrt(prompts / (prompts - 1) * (residual**2).sum(0)) / total.sum()
    half = student_quantile(prompts - 1) * error
    return share, np.clip(share - half, 0, most), np.clip(share + half, 0, most)


def _label(threshold: float) -> str:
    return "1e-6" if threshold < 0.01 else f"{threshold:.2f}"


def _ours(shares: dict[str, Coverage]) -> Table:
    rows = []
    for i, threshold in enumerate(THRESHOLDS):
        cells = []
        for share, low, high in shares.values():
            ends = "" if np.isnan(low[i]) else f" [{percent(low[i])}, {percent(high[i])}]"
            cells.append(percent(share[i]) + ends)
        rows.append([f"≤ {_label(threshold)}", *cells])
    return Table("Measured on this trace, share [95% interval]", ["gap", *shares], rows)


def _papers() -> Table:
    rows = [[f"≤ {_label(t)}", f"{value:.2f}%"] for t, value in zip(THRESHOLDS, PAPER, strict=True)]
    title = "The paper's numbers, for another model and data; not measured here"
    return Table(title, ["gap", "coverage"], rows)


def _figure(shares: dict[str, Coverage]) -> "Figure":
    figure, (axes,) = panels(1, columns=1, size=(5.0, 3.0))
    x = np.arange(len(THRESHOLDS))
    for i, (name, (coverage, low, high)) in enumerate(shares.items()):
        style = look(i)
        reach = None
        if not np.isnan(low).any():
            reach = 100 * np.array([coverage - low, high - coverage])
        axes.errorbar(
            x + 0.06 * i,
            100 * coverage,
            reach,
            color=style.color,
            linestyle=style.linestyle,
            marker=style.marker,
            markersize=4,
            capsize=2,
            label=name,
        )
    axes.set_xticks(x, [_label(threshold) for threshold in THRESHOLDS])
    axes.set_xlabel(r"threshold on $|\pi_\theta(y) - \pi_\theta(v^*)|$")
    axes.set_ylabel("cumulative coverage (%)")
    legend(axes, loc="lower right")
    return figure
