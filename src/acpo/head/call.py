"""What `token_stats` and `fused_policy_loss` share: a call's settings and its gradient pass."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from acpo.head.passes import Gradients, Head, Wanted, run_pass
from acpo.head.projection import Projection, logits_dtype_for
from acpo.head.rows import RowCoefficients, RowStats, Sparsity


@dataclass
class HeadCall:
    """Everything of one call that is not differentiated.

    The dtypes are settled here, once: a backward pass that runs outside the forward's autocast
    must still see the same logits.
    """

    tokens: Tensor
    projection: Projection
    dtype: torch.dtype
    logits_dtype: torch.dtype
    logits_bytes: int | None
    align_tol: float

    @classmethod
    def make(
        cls,
        hidden: Tensor,
        tokens: Tensor,
        projection: Projection,
        *,
        logits_dtype: torch.dtype | None,
        logits_bytes: int | None,
        align_tol: float,
    ) -> "HeadCall":
        """Settle the dtypes of a call from its hidden states, the device and autocast."""
        device, dtype = hidden.device.type, hidden.dtype
        if torch.is_autocast_enabled(device) and dtype != torch.float64:
            dtype = torch.get_autocast_dtype(device)
        logits = logits_dtype_for(dtype, logits_dtype)
        if device == "cpu" and dtype in (torch.bfloat16, torch.float16):
            dtype = logits = torch.float32  # CPU half products round the logits
        # Kernels read the columns of a call with stride 1.
        return cls(tokens.contiguous(), projection, dtype, logits, logits_bytes, align_tol)

    def head(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Head:
        return Head(
            hidden.detach().to(self.dtype),
            weight.detach().to(self.dtype),
            None if bias is None else bias.detach().to(self.logits_dtype),
            self.projection,
            self.logits_dtype,
            self.logits_bytes,
        )


class InputGradients(NamedTuple):
    """Gradients for the inputs as the caller passed them."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    def cast(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        pairs = zip(self, (hidden, weight, bias), strict=True)
        return tuple(None if g is None or x is None else g.to(x.dtype) for g, x in pairs)


def spread_gradients(gradients: Gradients, rows: Tensor | None, total: int) -> InputGradients:
    """Put the hidden-state gradients of the computed rows back among all rows."""
    dh = gradients.hidden
    if dh is not None and rows is not None:
        dh = spread_rows(dh, rows, total)
    dw = gradients.weight
    if dw is None and gradients.wanted.weight:
        dw = torch.zeros_like(gradients.head.weight)
    return InputGradients(dh, dw, gradients.bias)


def gradient_pass(
    head: Head,
    tokens: Tensor,
    stats: RowStats,
    coefficients: RowCoefficients,
    wanted: Wanted,
    sparsity: Sparsity | None,
) -> InputGradients:
    """Gradients from known coefficients, over the rows where any is not 0."""
    total = tokens.shape[0]
    live = (coefficients.a != 0) | (coefficients.bm != 0) | (coefficients.h != 0)
    rows = unless_all(live)
    if rows is not None:
        head, tokens = head.at(rows), tokens[rows]
        stats, coefficients = stats.at(rows), coefficients.at(rows)
        sparsity = sparsity and sparsity.at(rows)

    def step(raw: Tensor, span: slice) -> Any:
        return head.backend.gradient(
            raw,
            tokens[span],
            head.projection,
            stats.at(span),
            coefficients.at(span),
            head.hidden.dtype,
            sparsity and sparsity.at(span),
        )

    return spread_gradients(run_pass(head, step, wanted, sparse=sparsity is not None), rows, total)


def unless_all(mask: Tensor) -> Tensor | None:
    """Indices of the true rows, or None if that is every row."""
    rows = mask.nonzero()[:, 0]
    return None if rows.numel() == mask.numel() else rows


def spread_rows(values: Tensor, rows: Tensor, total: int) -> Tensor:
    """Rows of a matrix back at their places among `total`, zeros elsewhere."""
    return values.new_zeros(total, values.shape[1]).index_copy_(0, rows, values)
