"""Table "cumulative coverage": how near the sampled token is to the mode."""

import numpy as np
from matplotlib.figure import Figure

from acpo.diagnose.figures import legend, look, panels
from acpo.diagnose.report import Finding, Table, percent
from acpo.diagnose.tokens import clustered_share, describe, require_usable, sums_by_prompt
from acpo.records import Trace

THRESHOLDS = (1e-6, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
LABELS = ("1e-6", *(f"{threshold:.2f}" for threshold in THRESHOLDS[1:]))
PAPER = (83.90, 83.93, 84.07, 84.81, 86.53, 89.81, 92.48, 96.13, 100.00)
"""What the paper's table says, percent. Shown beside nothing of ours."""

Coverage = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Share within each threshold, lower and upper end of its interval."""


def alignment(trace: Trace) -> Finding:
    """Measure the trace."""
    counts, left_out = sums_by_prompt(trace, ("logp", "log_pmax"), _within)
    require_usable(trace, len(counts), left_out)
    shares = {name: clustered_share(*own) for name, own in counts.items()}
    tokens = {name: int(total.sum()) for name, (_, total) in counts.items()}
    coverage = shares["all"][0]
    rows = [
        {"branch": name, "threshold": threshold, "coverage": share[i], "low": low[i]}
        | {"high": high[i], "tokens": int(counts[name][0][:, i].sum())}
        for name, (share, low, high) in shares.items()
        for i, threshold in enumerate(THRESHOLDS)
    ]
    facts = [
        f"{percent(coverage[0])} of {tokens['all']:,} sampled tokens are the policy's mode "
        f"(gap ≤ 1e-6), {percent(coverage[4])} lie within 0.1 of it."
    ]
    branches = [
        f"{percent(shares[name][0][0])} of {tokens[name]:,} with {name}"
        for name in shares.keys() - {"all"}
    ]
    if branches:
        facts.append(f"The mode, by the completion's advantage: {', '.join(sorted(branches))}.")
    if (prompts := len(counts["all"][1])) > 1:
        facts.append(f"Intervals are 95%, clustered by prompt ({prompts:,} prompts).")
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


def _within(columns: dict[str, np.ndarray]) -> list[np.ndarray]:
    gap = np.abs(np.exp(columns["log_pmax"]) - np.exp(columns["logp"]))
    return [gap <= threshold for threshold in THRESHOLDS]


def _ours(shares: dict[str, Coverage]) -> Table:
    rows = []
    for i, label in enumerate(LABELS):
        cells = []
        for share, low, high in shares.values():
            ends = "" if np.isnan(low[i]) else f" [{percent(low[i])}, {percent(high[i])}]"
            cells.append(percent(share[i]) + ends)
        rows.append([f"≤ {label}", *cells])
    return Table("Measured on this trace, share [95% interval]", ["gap", *shares], rows)


def _papers() -> Table:
    rows = [[f"≤ {label}", f"{value:.2f}%"] for label, value in zip(LABELS, PAPER, strict=True)]
    title = "The paper's numbers, for another model and data; not measured here"
    return Table(title, ["gap", "coverage"], rows)


def _figure(shares: dict[str, Coverage]) -> Figure:
    figure, (axes,) = panels(1, columns=1, size=(5.0, 3.0))
    x = np.arange(len(THRESHOLDS))
    for i, (name, (coverage, low, high)) in enumerate(shares.items()):
        reach = None
        if not np.isnan(low).any():
            reach = 100 * np.array([coverage - low, high - coverage])
        style = look(i).marked | {"markersize": 4, "capsize": 2}
        axes.errorbar(x + 0.06 * i, 100 * coverage, reach, **style, label=name)
    axes.set_xticks(x, LABELS)
    axes.set_xlabel(r"threshold on $|\pi_\theta(y) - \pi_\theta(v^*)|$")
    axes.set_ylabel("cumulative coverage (%)")
    legend(axes, loc="lower right")
    return figure
