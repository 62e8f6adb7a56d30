"""The later rows of the table, written from their formulas in loops over tokens and vocabulary.

Every row is `(logits[B, T, V], old_logits[B, T, V], tokens[B, T], advantages[B] or [B, T],
mask[B, T], *, aggregate="token_mean", normaliser=None, **constants) -> loss`, a float64 scalar to
minimise; `ROWS` holds them by name. Logits are already divided by the temperature. Below, a row is
written as a function from unmasked tokens to objectives; `row` adds the reading and the mean.

w = π/π_old of the sampled token, its logarithm bounded to ±20; p, p_old its probabilities; H the
entropy of the current policy in nats, always detached; A the advantage. The gradient of an
objective is A g ∇ log p unless said. Some rules state g alone, so that their value is a convention:
those docstrings name it, and other code is to be compared with them by gradients.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

ROWS: dict[str, Callable[..., Tensor]] = {}


class Token(NamedTuple):
    """One unmasked token; tensors carry a gradient, floats are detached."""

    place: tuple[int, int]
    sampled: int
    advantage: float
    log_probs: list[Tensor]
    old_log_probs: list[float]

    @property
    def row(self) -> int:
        return self.place[0]

    @property
    def log_p(self) -> Tensor:
        return self.log_probs[self.sampled]

    @property
    def log_ratio(self) -> Tensor:
        return self.log_p - self.old_log_probs[self.sampled]

    @property
    def ratio(self) -> Tensor:
        return self.log_ratio.clamp(-20, 20).exp()

    @property
    def w(self) -> float:
        return self.ratio.item()

    @property
    def p(self) -> float:
        return math.exp(self.log_p.item())

    @property
    def p_old(self) -> float:
        return math.exp(self.old_log_probs[self.sampled])

    @property
    def entropy(self) -> float:
        return -sum(math.exp(x.item()) * x.item() for x in self.log_probs)


def log_softmax(logits: Tensor) -> list[Tensor]:
    largest = max(z.item() for z in logits)
    mass = sum(torch.exp(z - largest) for z in logits)
    return [z - largest - torch.log(mass) for z in logits]


def unmasked(mask) -> Iterator[tuple[int, int]]:
    for row in range(mask.shape[0]):
        for step in range(mask.shape[1]):
            if mask[row, step]:
                yield row, step


def advantage_at(advantages, place: tuple[int, int]) -> float:
    return float(advantages[place[0]] if advantages.dim() == 1 else advantages[place])


def read(logits, old_logits, tokens, advantages, mask) -> list[Token]:
    """The unmasked tokens, row after row."""
    batch = []
    for place in unmasked(mask):
        old = log_softmax(old_logits[place].detach().double())
        batch.append(
            Token(
                place=place,
                sampled=int(tokens[place]),
                advantage=advantage_at(advantages, place),
                log_probs=log_softmax(logits[place].double()),
                old_log_probs=[x.item() for x in old],
            )
        )
    return batch


def weights(mask, aggregate: str = "token_mean", normaliser: float | None = None):
    """What each unmasked token counts in the loss: {place: weight}.

    token_mean 1/(all tokens), sequence_mean 1/(B · tokens of the row), constant 1/(B · normaliser).
    Completions without any token count in B, as in TRL; verl leaves them out.
    """
    places = list(unmasked(mask))
    size = mask.shape[0]
    if aggregate == "token_mean":
        return {place: 1 / len(places) for place in places}
    if aggregate == "sequence_mean":
        return {place: 1 / (size * sum(r == place[0] for r, _ in places)) for place in places}
    return {place: 1 / (size * normaliser) for place in places}


def row(objectives_of: Callable[..., list]) -> Callable[..., Tensor]:
    """The loss of a row: minus the weighted sum of the objectives of its tokens."""

    @functools.wraps(objectives_of)
    def loss(
        logits,
        old_logits,
        tokens,
        advantages,
        mask,
        *,
        aggregate="token_mean",
        normaliser=None,
        **constants,
    ):
        batch = read(logits, old_logits, tokens, advantages, mask)
        weight = weights(mask, aggregate, normaliser)
        total = torch.zeros((), dtype=torch.float64)
        for x, objective in zip(batch, objectives_of(batch, **constants), strict=True):
            # A clipped objective is a number: 0 log p keeps it in the graph, with gradient 0.
            total = total - weight[x.place] * (objective + 0 * x.log_p)
        return total

    ROWS[objectives_of.__name__] = loss
    return loss


def clipped(x: Token, advantage: float, low: float, high: float, delta: float | None = None):
    """min(min(w, delta) A, clip(w, low, high) A); `low` and `high` bound w itself.

    delta is TRL 1.16's two-sided clipping. Above `high` it acts on A < 0 alone and is verl's dual
    clip with c = delta; below `high`, TRL lets it lower the bound of A > 0 too.
    """
    if advantage > 0:
        upper = high if delta is None else min(high, delta)
        return upper * advantage if x.w > upper else x.ratio * advantage
    if x.w < low:
        return low * advantage
    if delta is not None and x.w > max(high, delta):
        return max(high, delta) * advantage
    return x.ratio * advantage


def held(value: float, x: Token) -> Tensor:
    """`value`, with gradient value · ∇ log p."""
    return value * (1 + x.log_p - x.log_p.detach())


def quantile(values: list[float], q: float) -> float:
    """Linearly interpolated."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def entropy_threshold(batch: list[Token], row: int, q: float) -> float:
    """The q-quantile of H over one completion's own tokens."""
    return quantile([x.entropy for x in batch if x.row == row], q)


def sign_weights(advantages, *, positive: float = 1.0, nonpositive: float = 1.0) -> Tensor:
    """A scaled by `positive` where A > 0 and by `nonpositive` elsewhere, for any row to take."""
    scaled = advantages.detach().double().clone()
    for i, a in enumerate(scaled.flatten().tolist()):
        scaled.view(-1)[i] = a * (positive if a > 0 else nonpositive)
    return scaled


def positive_share(advantages, mask, *, share: float, **aggregation) -> Tensor:
    """Scale A > 0 by s (P + N)/P and A < 0 by (1 - s)(P + N)/N, so that P/(P + N) becomes s.

    P and N are the sums of |A| of each sign over unmasked tokens, under the weights of the loss.
    Ambiguous: the total. It is kept here; scaling one branch only would give the same balance at
    another size. With one branch empty nothing is scaled. A row with a credit c passes A · sg[c]
    to set the share of the credited advantage. Returns [B, T] for any row to take.
    """
    scaled = torch.zeros(mask.shape, dtype=torch.float64)
    positive = negative = 0.0
    for place, weight in weights(mask, **aggregation).items():
        a = advantage_at(advantages, place)
        scaled[place] = a
        positive += weight * max(a, 0)
        negative += weight * max(-a, 0)
    if positive == 0 or negative == 0:
        return scaled
    up = share * (positive + negative) / positive
    down = (1 - share) * (positive + negative) / negative
    return sign_weights(scaled, positive=up, nonpositive=down)


@row
def bnpo(batch, *, low=0.2, high=0.2, delta=None):
    """TRL's bnpo: PPO clip to [1 - low, 1 + high], mean over the unmasked tokens of the batch.

    Ambiguous: "batch" is TRL's local micro-batch; here it is the tensor given. GRPO's and DAPO's
    clips are this rule with another `aggregate` and `high`.
    """
    return [clipped(x, x.advantage, 1 - low, 1 + high, delta) for x in batch]


def dr_grpo(*inputs, normaliser, **constants):
    """TRL's dr_grpo: PPO clip, summed and divided by B · normaliser (max_completion_length).

    Ambiguous: the paper's advantage r - mean, without deviation, is another option in TRL and is
    the caller's here. B counts completions without tokens.
    """
    return bnpo(*inputs, aggregate="constant", normaliser=normaliser, **constants)


ROWS["dr_grpo"] = dr_grpo


@row
def vespo(batch, *, k_pos=2.0, lambda_pos=3.0, k_neg=3.0, lambda_neg=2.0):
    """TRL's vespo: J = sg[φ] A log p, φ = e^λ W^k e^{-λW}, W = exp(Σ_t log w) of the completion.

    The positive pair serves A >= 0. Token log ratios are bounded to ±20, log W to [log 1e-8, 20],
    λ from below by 1e-4. The value is TRL's. With [B, T] advantages φ takes each token's sign.
    """
    objectives = []
    for x in batch:
        total = sum(min(20.0, max(-20.0, y.log_ratio.item())) for y in batch if y.row == x.row)
        log_w = min(20.0, max(math.log(1e-8), total))
        k, decay = (k_pos, lambda_pos) if x.advantage >= 0 else (k_neg, lambda_neg)
        decay = max(decay, 1e-4)
        phi = math.exp(decay + k * log_w - decay * math.exp(log_w))
        objectives.append(phi * x.advantage * x.log_p)
    return objectives


@row
def entropy_adv(batch, *, alpha=0.4, kappa=2.0, low=0.2, high=0.28, delta=None):
    """A' = A + min(α sg[H], |A|/κ), α = 0.4, κ = 2, then PPO clip with A'.

    Ambiguous: the clip (PPO or DAPO; DAPO's 0.2/0.28 here) and whose entropy (the current policy's
    here). For κ > 1 the sign of A never changes; A = 0 stays 0.
    """
    objectives = []
    for x in batch:
        shaped = x.advantage + min(alpha * x.entropy, abs(x.advantage) / kappa)
        objectives.append(clipped(x, shaped, 1 - low, 1 + high, delta))
    return objectives


@row
def low_prob(batch, *, alpha=0.2, low=0.2, high=0.2, delta=None):
    """A' = A (α p_old + 1 - α) for both signs, α = 0.2 (0.3 beside Lopti), then PPO clip.

    Ambiguous: the clip. 0.2/0.2 here; an official script has 0.20/0.24.
    """
    objectives = []
    for x in batch:
        shaped = x.advantage * (alpha * x.p_old + 1 - alpha)
        objectives.append(clipped(x, shaped, 1 - low, 1 + high, delta))
    return objectives


def covariances(batch: list[Token]) -> list[float]:
    """(A - mean A)(log p - mean log p), means over unmasked tokens; current policy, detached."""
    mean_a = sum(x.advantage for x in batch) / len(batch)
    mean_l = sum(x.log_p.item() for x in batch) / len(batch)
    return [(x.advantage - mean_a) * (x.log_p.item() - mean_l) for x in batch]


def clip_cov_candidates(*inputs, bounds=(1.0, 5.0), low=0.2, high=0.2) -> list[tuple[int, int]]:
    """Places clip_cov may draw from: covariance strictly inside `bounds`, not clipped by PPO."""
    batch = read(*inputs)
    places = []
    for x, cov in zip(batch, covariances(batch), strict=True):
        above = x.advantage > 0 and x.w > 1 + high
        below = x.advantage < 0 and x.w < 1 - low
        if bounds[0] < cov < bounds[1] and not above and not below:
            places.append(x.place)
    return places


def clip_cov_count(mask, *, share=2e-4) -> int:
    """How many clip_cov draws at most: the share of unmasked tokens, rounded down, at least 1."""
    return max(1, int(share * len(list(unmasked(mask)))))


@row
def clip_cov(batch, *, drawn, low=0.2, high=0.2, delta=None):
    """PPO clip; tokens of `drawn` ([B, T], true where drawn) lose their value and gradient.

    They stay in the denominator. `clip_cov_candidates` and `clip_cov_count` say what a draw may
    hold. Ambiguous: the clip. verl uses the actor's; scripts of the method set 1/1.
    """
    objectives = []
    for x in batch:
        kept = clipped(x, x.advantage, 1 - low, 1 + high, delta)
        objectives.append(0.0 if drawn[x.place] else kept)
    return objectives


@row
def kl_cov(batch, *, share=2e-4, beta=1.0):
    """J = w A, less β |log w| on the max(1, int(share · n)) tokens of largest covariance.

    No PPO clip at all, as in verl. Ambiguous: β (1 in scripts, 0.1 by verl's configuration), share
    (2e-4 to 2e-3), ties (reading order here). At w = 1 the penalty's gradient is 0.
    """
    cov = covariances(batch)
    count = max(1, int(share * len(batch)))
    largest = sorted(range(len(batch)), key=lambda i: -cov[i])[:count]
    objectives = [x.ratio * x.advantage for x in batch]
    for i in largest:
        objectives[i] = objectives[i] - beta * batch[i].log_ratio.abs()
    return objectives


@row
def simko(batch, *, alpha=0.01, top=3, scale=1.1, q=0.8, low=0.2, high=0.2, delta=None):
    """On tokens with H above the completion's q-quantile, strictly; PPO clip on all.

    A > 0: w -> (1 - α) w + (α/K) Σ_k sg[w/w_k] w_k, k over the K likeliest ids of the current
    policy: the value stays w and w_k's old policy cancels. A < 0: A -> 1.1 A if y is the mode.
    Ambiguous: "good" is a reward of 1 in the code, A > 0 here; ties at the mode count as the mode;
    ties at rank K go to the smaller id; a clipped token loses the candidates' gradient too.
    """
    objectives = []
    for x in batch:
        uncertain = x.entropy > entropy_threshold(batch, x.row, q)
        ranked = sorted(x.log_probs, key=lambda log_p: -log_p.item())
        at_mode = x.log_p.item() == ranked[0].item()
        boost = scale if uncertain and at_mode and x.advantage < 0 else 1.0
        objective = clipped(x, boost * x.advantage, 1 - low, 1 + high, delta)
        inside = isinstance(objective, Tensor)
        if uncertain and x.advantage > 0 and inside:
            candidates = sum(x.w * torch.exp(k - k.detach()) for k in ranked[:top]) / top
            objective = ((1 - alpha) * x.ratio + alpha * candidates) * x.advantage
        objectives.append(objective)
    return objectives


@row
def aspo(batch, *, q=0.8, low_entropy=0.2, high_entropy=0.4, cap=3.0):
    """A > 0: g = min(1/w, 3) while w <= 1 + ε, else 0. A < 0: g = min(w, 3) while w >= 1 - ε.

    ε = 0.2 where H <= the completion's q-quantile, 0.4 above. The gradient is kept at the cap. The
    value is A g, or A g at the bound where clipped (the code's own: A · 3 log p at the cap).
    """
    objectives = []
    for x in batch:
        uncertain = x.entropy > entropy_threshold(batch, x.row, q)
        eps = high_entropy if uncertain else low_entropy
        if x.advantage > 0 and x.w > 1 + eps:
            objectives.append(x.advantage / (1 + eps))
        elif x.advantage > 0:
            objectives.append(held(min(1 / x.w, cap) * x.advantage, x))
        elif x.w < 1 - eps:
            objectives.append((1 - eps) * x.advantage)
        else:
            objectives.append(held(min(x.w, cap) * x.advantage, x))
    return objectives


@row
def ce_gppo(batch, *, beta1=0.5, beta2=1.0, low=0.2, high=0.2, dual=10.0):
    """A < 0, w < 1 - ε: g = β1 (1 - ε). A > 0, w > 1 + ε: g = β2 (1 + ε). Otherwise g = w.

    For A < 0 and w > dual the gradient is 0 and the value A · dual. The value is A g, the code's.
    β1 = 0.5 (1.5B) or 0.75 (7B). Ambiguous: the dual clip is in the scripts only.
    """
    objectives = []
    for x in batch:
        if x.advantage < 0 and x.w < 1 - low:
            objectives.append(held(beta1 * (1 - low) * x.advantage, x))
        elif x.advantage > 0 and x.w > 1 + high:
            objectives.append(held(beta2 * (1 + high) * x.advantage, x))
        elif x.advantage < 0 and x.w > dual:
            objectives.append(dual * x.advantage)
        else:
            objectives.append(held(x.w * x.advantage, x))
    return objectives


@row
def dcpo(batch, *, low=0.2, high=0.28, cap=10.0):
    """PPO clip of w to [½ (1 + √max(0, 1 - 4 ε_l/p_old)), min(cap, ½ (1 + √(1 + 4 ε_h/p_old)))].

    ε_l = 0.2, ε_h = 0.28. Below p_old = 4 ε_l the lower bound is ½, as in the code. Ambiguous: the
    code adds a dual clip for A < 0, off here.
    """
    objectives = []
    for x in batch:
        lower = (1 + math.sqrt(max(0.0, 1 - 4 * low / x.p_old))) / 2
        upper = min(cap, (1 + math.sqrt(1 + 4 * high / x.p_old)) / 2)
        objectives.append(clipped(x, x.advantage, lower, upper))
    return objectives


@row
def maspo(batch, *, sigma=1.0, alpha=0.3, beta=0.03):
    """g = w exp(-(w - 1)²/(2σ²)) where A > 0, w > 1 or A < 0, w < 1; elsewhere g = w.

    σ = clip(σ_b p_old^-α, σ_b, 10) · clip(1 + β A, .1, 10) for A > 0, · clip(1/(1 - β A), .1, 10)
    for A < 0. The weight is detached and the value A g, as in the code; a gate f with this f' has
    another value and the same gradient.
    """
    objectives = []
    for x in batch:
        a = x.advantage
        g = x.w
        if (a > 0 and x.w > 1) or (a < 0 and x.w < 1):
            size = 1 + beta * a if a > 0 else 1 / (1 - beta * a)
            width = min(max(sigma * x.p_old**-alpha, sigma), 10) * min(max(size, 0.1), 10)
            g *= math.exp(-((x.w - 1) ** 2) / (2 * width**2))
        objectives.append(held(g * a, x))
    return objectives


def divergence_gate(x: Token, outside: bool, truncate: float):
    """sg[min(w, truncate)] A log p, and 0 outside the trust region."""
    return 0.0 if outside else min(x.w, truncate) * x.advantage * x.log_p


@row
def dppo_tv(batch, *, low=0.2, high=0.2, truncate=20.0):
    """J = sg[min(w, 20)] A log p; 0 where A > 0, p - p_old > ε_h or A < 0, p - p_old < -ε_l.

    The value is verl's. Ambiguous: ε (verl reads its clip ratios, 0.2) and the truncation: 20 in
    the formula, while verl's own configuration sets clip_ratio_c = 3 unless changed.
    """
    objectives = []
    for x in batch:
        rise = x.p - x.p_old
        outside = rise > high if x.advantage > 0 else rise < -low
        objectives.append(divergence_gate(x, outside, truncate))
    return objectives


@row
def dppo_kl(batch, *, low=0.2, high=0.2, truncate=20.0):
    """As dppo_tv, outside where the binary KL(p_old, p) > ε and p moved with the sign of A.

    KL = p_old log(p_old/p) + (1 - p_old) log((1 - p_old)/(1 - p)), 1e-8 added to both parts of the
    second fraction as in verl. Ambiguous as dppo_tv; a KL bound of 0.2 is verl's clip ratio.
    """
    objectives = []
    for x in batch:
        rest = math.log((1 - x.p_old + 1e-8) / (1 - x.p + 1e-8))
        kl = -x.p_old * x.log_ratio.item() + (1 - x.p_old) * rest
        up = x.advantage > 0
        moved = x.p > x.p_old if up else x.p < x.p_old
        outside = moved and kl > (high if up else low)
        objectives.append(divergence_gate(x, outside, truncate))
    return objectives


def entropy_ranks(batch: list[Token], pivot: float) -> list[float]:
    """ĥ of hapo: log H less its quantile, each side divided by its largest size, so in [-1, 1].

    The rms that the paper divides by cancels. H is floored at 1e-8.
    """
    logs = [math.log(max(x.entropy, 1e-8)) for x in batch]
    middle = quantile(logs, pivot)
    z = [value - middle for value in logs]
    top, bottom = max(z), -min(z)
    return [value / top if value > 0 else value / bottom if value < 0 else 0.0 for value in z]


@row
def hapo(batch, *, pivot=0.8, alpha=1.0, beta=1.0, low=0.2, high=0.2):
    """A' = A (1 + β ĥ) for ĥ > 0 where w left (1 - ε_l/2, 1 + ε_h/2), for ĥ <= 0 where w is inside.

    Then PPO clip: ε_l (1 - α ĥ) for ĥ <= 0, ε_h (1 + α ĥ) for ĥ > 0, the other side unchanged.
    The paper's rule: the official code has ĥ >= 0 everywhere. ĥ is over the tensor given.
    Ambiguous: the quantile ("nearest" in the code), the ε of the neutral interval (the code takes
    those of the clip), and a dual clip (10 in scripts).
    """
    objectives = []
    for x, h in zip(batch, entropy_ranks(batch, pivot), strict=True):
        below = low * (1 - alpha * h) if h <= 0 else low
        above = high * (1 + alpha * h) if h > 0 else high
        inside = 1 - low / 2 < x.w < 1 + high / 2
        applies = not inside if h > 0 else inside
        shaped = x.advantage * (1 + beta * h) if applies else x.advantage
        objectives.append(clipped(x, shaped, 1 - below, 1 + above))
    return objectives
