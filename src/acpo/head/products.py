"""The vocabulary products, chunk by chunk: logits, a row step, and the gradient products.

Per chunk: raw = h Wᵀ, the row step turns raw into its gradient G (or only into statistics), then
dh = G W and dW += Gᵀ h. No more than one chunk of logits exists at a time.
"""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from acpo.head import chunked
from acpo.head.projection import Projection, add_matmul, matmul, wide_dtype
from acpo.head.rows import RowCoefficients, RowStats, SparseGradient, Sparsity

ROW_ALIGNMENT = 128
INTERPRET = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own switch: kernels on the CPU
CUDA_LOGITS_BYTES = 5_000_000_000  # 8,192 rows of 151,936 float32 logits
CPU_LOGITS_BYTES = 64 << 20


def default_logits_bytes(device: torch.device) -> int:
    """Memory for a chunk of logits, from the size of the device alone."""
    if device.type != "cuda":
        return CPU_LOGITS_BYTES
    return min(CUDA_LOGITS_BYTES, torch.cuda.get_device_properties(device).total_memory // 16)


RowStep = Callable[[Tensor, slice], Tensor | SparseGradient | None]


class Wanted(NamedTuple):
    """Which gradients a pass accumulates."""

    hidden: bool
    weight: bool
    bias: bool


@dataclass
class Head:
    """Hidden states and head weights in one compute dtype, ready to multiply."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    projection: Projection
    logits_bytes: int | None = None

    @property
    def logits_dtype(self) -> torch.dtype:
        """Wide, whatever the compute dtype."""
        return wide_dtype(self.hidden.dtype)

    @property
    def backend(self) -> ModuleType:
        """The row step for this device."""
        if self.hidden.dtype != torch.float64 and (self.hidden.is_cuda or INTERPRET):
            from acpo.head import triton

            return triton
        return chunked

    def at(self, rows: Tensor) -> "Head":
        return replace(self, hidden=self.hidden[rows])

    def chunk_rows(self) -> int:
        """Rows per chunk: equal chunks under the logits budget, a function of shapes alone."""
        rows, vocab = self.hidden.shape[0], self.weight.shape[0]
        budget = self.logits_bytes or default_logits_bytes(self.hidden.device)
        most = max(1, budget // (vocab * self.logits_dtype.itemsize))
        if most >= rows:
            return max(rows, 1)
        most = max(most // ROW_ALIGNMENT * ROW_ALIGNMENT, min(most, ROW_ALIGNMENT))
        even = math.ceil(rows / math.ceil(rows / most))
        return min(most, math.ceil(even / ROW_ALIGNMENT) * ROW_ALIGNMENT)

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Row ranges with their raw logits, all in one reused buffer."""
        rows, step = self.hidden.shape[0], self.chunk_rows()
        # A row stride of 16 elements keeps vector loads and the in-place gradient aligned.
        stride = math.ceil(self.weight.shape[0] / 16) * 16
        buffer = self.hidden.new_empty(min(step, rows), stride, dtype=self.logits_dtype)
        for start in range(0, rows, step):
            span = slice(start, min(start + step, rows))
            raw = buffer[: span.stop - start, : self.weight.shape[0]]
            matmul(self.hidden[span], self.weight.t(), raw)
            if self.bias is not None:
                raw.add_(self.bias)
            yield span, raw


class Gradients:
    """dh, dW and db of a pass. Several chunks accumulate dW in float32 and round it once."""

    def __init__(self, head: Head, wanted: Wanted, *, sparse: bool = False) -> None:
        self.head, self.wanted = head, wanted
        single = head.chunk_rows() >= head.hidden.shape[0] and not sparse
        make = torch.zeros_like if sparse else torch.empty_like
        self.hidden = make(head.hidden) if wanted.hidden else None
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None
        wide = head.logits_dtype
        self._weight_dtype = head.weight.dtype if single else wide
        if wanted.bias:
            assert head.bias is not None
            self.bias = torch.zeros_like(head.bias, dtype=wide)

    def add(self, span: slice, gradient: Tensor | SparseGradient) -> None:
        if isinstance(gradient, SparseGradient):
            self._add_sparse(span, gradient)
            return
        if self.hidden is not None:
            matmul(gradient, self.head.weight, self.hidden[span])
        if self.wanted.weight:
            hidden = self.head.hidden[span]
            if self.weight is None:
                self.weight = torch.empty_like(self.head.weight, dtype=self._weight_dtype)
                matmul(gradient.t(), hidden, self.weight)
            else:
                add_matmul(self.weight, gradient.t(), hidden)
        if self.bias is not None:
            self.bias += gradient.sum(0, dtype=self.bias.dtype)

    def _add_sparse(self, span: slice, gradient: SparseGradient) -> None:
        rows, columns, values = gradient
        if self.wanted.weight and self.weight is None:
            self.weight = torch.zeros_like(self.head.weight, dtype=self._weight_dtype)
        if rows.numel() == 0:
            return
        if self.hidden is not None:
            part = self.hidden.new_empty(rows.numel(), self.hidden.shape[1])
            matmul(values, self.head.weight[columns], part)
            self.hidden[span].index_copy_(0, rows, part)
        if self.weight is not None:
            product = self.weight.new_empty(columns.numel(), self.weight.shape[1])
            matmul(values.t(), self.head.hidden[span][rows], product)
            self.weight.index_add_(0, columns, product)
        if self.bias is not None:
            self.bias.index_add_(0, columns, values.sum(0, dtype=self.bias.dtype))

    def spread(self, rows: Tensor | None, total: int) -> None:
        """Those of the computed rows back among all rows, zeros elsewhere; None means all."""
        if self.hidden is not None and rows is not None:
            whole = self.hidden.new_zeros(total, self.hidden.shape[1])
            self.hidden = whole.index_copy_(0, rows, self.hidden)

    def like(self, *inputs: Tensor | None) -> tuple[Tensor | None, ...]:
        """For hidden states, weight and bias as the caller passed them."""
        pairs = zip((self.hidden, self.weight, self.bias), inputs, strict=True)
        return tuple(None if g is None or x is None else g.to(x.dtype) for g, x in pairs)


def run_pass(head: Head, step: RowStep, wanted: Wanted, *, sparse: bool = False) -> Gradients:
    """Apply `step` to every chunk and gather the gradients it returns."""
    gradients = Gradients(head, wanted, sparse=sparse)
    # The dtypes are fixed; autocast would narrow sums that have to be wide.
    with torch.autocast(head.hidden.device.type, enabled=False):
        for span, raw in head.chunks():
            gradient = step(raw, span)
            if gradient is not None:
                gradients.add(span, gradient)
    if gradients.weight is None and wanted.weight:
        gradients.weight = torch.zeros_like(head.weight)
    return gradients


def compute_statistics(head: Head, tokens: Tensor, align_tol: float) -> RowStats:
    """Statistics of every row, without gradients."""
    stats = RowStats.empty(head.hidden.shape[0], head.hidden.device, head.logits_dtype)

    def step(raw: Tensor, span: slice) -> None:
        head.backend.statistics(raw, tokens[span], head.projection, align_tol, stats.at(span))

    run_pass(head, step, Wanted(False, False, False))
    return stats


@dataclass
class HeadSettings:
    """How one call computes its logits.

    The dtype is fixed here, once: a backward pass that runs outside the forward's autocast must
    still see the same logits.
    """

    projection: Projection
    dtype: torch.dtype
    logits_bytes: int | None

    @classmethod
    def make(
        cls, hidden: Tensor, projection: Projection, logits_bytes: int | None
    ) -> "HeadSettings":
        """Fix the dtype of a call from its hidden states, the device and autocast."""
        device, dtype = hidden.device.type, hidden.dtype
        if torch.is_autocast_enabled(device) and dtype != torch.float64:
            dtype = torch.get_autocast_dtype(device)
        if device == "cpu" and dtype in (torch.bfloat16, torch.float16):
            dtype = torch.float32  # CPU half products round the logits
        return cls(projection, dtype, logits_bytes)

    def head(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Head:
        return Head(
            hidden.detach().to(self.dtype),
            weight.detach().to(self.dtype),
            None if bias is None else bias.detach().to(wide_dtype(self.dtype)),
            self.projection,
            self.logits_bytes,
        )


def gradient_pass(
    head: Head,
    tokens: Tensor,
    stats: RowStats,
    coefficients: RowCoefficients,
    wanted: Wanted,
    sparsity: Sparsity | None,
) -> Gradients:
    """Gradients from known coefficients, over the rows where any is not 0."""
    total = tokens.shape[0]
    rows = unless_all(coefficients.live())
    if rows is not None:
        head, tokens = head.at(rows), tokens[rows]
        stats, coefficients = stats.at(rows), coefficients.at(rows)
        sparsity = sparsity and sparsity.at(rows)

    def step(raw: Tensor, span: slice) -> Tensor | SparseGradient:
        return head.backend.gradient(
            raw,
            tokens[span],
            head.projection,
            stats.at(span),
            coefficients.at(span),
            head.hidden.dtype,
            sparsity and sparsity.at(span),
        )

    gradients = run_pass(head, step, wanted, sparse=sparsity is not None)
    gradients.spread(rows, total)
    return gradients


def unless_all(mask: Tensor) -> Tensor | None:
    """Indices of the true rows, or None if that is every row."""
    rows = mask.nonzero()[:, 0]
    return None if rows.numel() == mask.numel() else rows
