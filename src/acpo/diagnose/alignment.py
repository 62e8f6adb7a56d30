"""Table "cumulative coverage": how near the sampled token is to the mode."""

from typing import TYPE_CHECKING

import numpy as np

from acpo.diagnose.figures import look, panels
from acpo.diagnose.report import Finding, Table, percent
from acpo.diagnose.tokens import chunks, describe
from acpo.intervals import student_quantile
from acpo.records import Trace, TraceError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THRESHOLDS = (1e-6, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
PAPER = (83.90, 83.93, 84.07, 84.81, 86.53, 89.81, 92.48, 96.13, 100.00)
"""What the paper's table says, percent. Shown beside nothing of ours."""


def alignment(trace: Trace) -> Finding:
    """Measure the trace.

    Raises:
        ACPOError: The trace lacks columns or usable tokens.
    """
    within, total, left_out = _count(trace)
    if not total.sum():
        raise TraceError(f"{trace.path}: none of its {left_out} tokens has usable statistics")
    coverage, low, high = clustered_share(within, total)
    rows = [
        {
            "threshold": threshold,
            "coverage": coverage[i],
            "low": low[i],
            "high": high[i],
            "tokens": int(within[:, i].sum()),
        }
        for i, threshold in enumerate(THRESHOLDS)
    ]
    facts = [
        f"{percent(coverage[0])} of {int(total.sum()):,} sampled tokens are the policy's mode "
        f"(gap ≤ 1e-6), {percent(coverage[4])} lie within 0.1 of it."
    ]
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
            "handles the rest."
        ),
        facts=facts,
        tables=[_ours(coverage, low, high), _papers()],
        rows=rows,
        figure=_figure(coverage, low, high),
    )


def _count(trace: Trace) -> tuple[np.ndarray, np.ndarray, int]:
    """Per prompt: tokens within each threshold, tokens; and tokens left out."""
    within = np.zeros((0, len(THRESHOLDS)), dtype=np.int64)
    total = np.zeros(0, dtype=np.int64)
    left_out = 0
    for chunk in chunks(trace, "logp", "log_pmax"):
        left_out += chunk.left_out
        if not len(chunk):
            continue
        prompts = max(len(total), int(chunk.prompt.max()) + 1)
        total = np.pad(total, (0, prompts - len(total)))
        within = np.pad(within, ((0, prompts - len(within)), (0, 0)))
        gap = np.abs(np.exp(chunk.columns["log_pmax"]) - np.exp(chunk.columns["logp"]))
        total += np.bincount(chunk.prompt, minlength=prompts)
        for i, threshold in enumerate(THRESHOLDS):
            within[:, i] += np.bincount(chunk.prompt[gap <= threshold], minlength=prompts)
    used = total > 0
    return within[used], total[used], left_out


def clustered_share(
    within: np.ndarray, total: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares of all tokens with 95% intervals; tokens of one prompt are not independent.

    Args:
        within: `[prompts, thresholds]` tokens counted.
        total: `[prompts]` tokens.

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
    return share, np.clip(share - half, 0, 1), np.clip(share + half, 0, 1)


def _label(threshold: float) -> str:
    return "1e-6" if threshold < 0.01 else f"{threshold:.2f}"


def _ours(coverage: np.ndarray, low: np.ndarray, high: np.ndarray) -> Table:
    rows = []
    for i, threshold in enumerate(THRESHOLDS):
        ends = "-" if np.isnan(low[i]) else f"{percent(low[i])} to {percent(high[i])}"
        rows.append([f"≤ {_label(threshold)}", percent(coverage[i]), ends])
    return Table("Measured on this trace", ["gap", "coverage", "95% interval"], rows)


def _papers() -> Table:
    rows = [[f"≤ {_label(t)}", f"{value:.2f}%"] for t, value in zip(THRESHOLDS, PAPER, strict=True)]
    title = "The paper's numbers, for another model and data; not measured here"
    return Table(title, ["gap", "coverage"], rows)


def _figure(coverage: np.ndarray, low: np.ndarray, high: np.ndarray) -> "Figure":
    figure, (axes,) = panels(1, columns=1, size=(5.0, 3.0))
    x = np.arange(len(THRESHOLDS))
    style = look(0)
    reach = None
    if not np.isnan(low).any():
        reach = 100 * np.array([coverage - low, high - coverage])
    axes.errorbar(
        x, 100 * coverage, reach, color=style.color, marker=style.marker, markersize=4, capsize=3
    )
    axes.set_xticks(x, [_label(threshold) for threshold in THRESHOLDS])
    axes.set_xlabel(r"threshold on $|\pi_\theta(y) - \pi_\theta(v^*)|$")
    axes.set_ylabel("cumulative coverage (%)")
    return figure
