"""From raw products to logits, inside a kernel."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-1.0e30)


@triton.jit
def logit(raw, inside, scale, SOFTCAP: tl.constexpr):
    """The logit before its last factor: the softcap's tanh, or the product as it is."""
    x = raw.to(tl.float32)
    if SOFTCAP:
        x = 1.0 - 2.0 / (1.0 + tl.exp2(x * (2.0 * LOG2_E * scale)))
        x = tl.where(inside, x, LOWEST)  # outside, tanh(-inf) would be -1
    # An impossible token (-inf) contributes 0, where 0 · -inf would be NaN. NaN passes.
    return tl.where(x < LOWEST, LOWEST, x)
