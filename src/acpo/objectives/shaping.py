"""From one advantage per sequence to one per token, where a row looks at other tokens.

A shaping is one object, and engines know none of them by name. What it needs of other sequences
reaches it in two steps. `of_group` sees whole groups of completions once, when a rollout is
complete. `shape` sees one mini-batch and, through a `Reducer`, sums over whoever shares it: nobody
in `dense_loss`, the processes of a trainer, verl's data-parallel group. After that, every
remaining step of every row is local to the token (or, for GSPO and GMPO, to its sequence).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from acpo.objectives.tokens import is_policy_mode, select


class Reducer:
    """How parts of one mini-batch learn of each other; this one, that it is all in one place."""

    def sum(self, x: Tensor) -> Tensor:
        """Sum over the parts."""
        return x

    def maximum(self, x: Tensor) -> Tensor:
        """Elementwise maximum over the parts."""
        return x

    def gather(self, values: Tensor) -> Tensor:
        """One-dimensional values of all parts, of whatever lengths, part after part."""
        return values

    @property
    def place(self) -> int:
        """How many parts stand before this one."""
        return 0

    def smallest(self, values: Tensor, number: int) -> Tensor:
        """Which of this part's values are of the `number` smallest of all; of equal ones the
        first."""
        everyone = self.gather(values)
        chosen = torch.zeros_like(everyone, dtype=torch.bool)
        chosen[everyone.argsort(stable=True)[:number]] = True
        lengths = self.gather(torch.tensor([values.numel()], device=values.device))
        before = int(lengths[: self.place].sum())
        return chosen[before : before + values.numel()]


class Sequences(NamedTuple):
    """A mini-batch, or this process's part of it, `[B, T]`; for `of_group` whole groups, the rows
    of a group consecutive.

    Attributes:
        advantages: `[B]`, or `[B, T]` if they were given per token.
        mask: true at valid completion tokens.
        options: the method's.
        tokens: sampled ids.
        entropy, log_pmax, logp: under the current policy, detached.
        old_entropy, old_log_pmax, old_logp: under the rollout policy.
        group_size: completions per prompt, where groups are whole.
        group: what `of_group` found.
    """

    advantages: Tensor
    mask: Tensor
    options: Mapping[str, Any]
    tokens: Tensor | None = None
    entropy: Tensor | None = None
    log_pmax: Tensor | None = None
    logp: Tensor | None = None
    old_entropy: Tensor | None = None
    old_log_pmax: Tensor | None = None
    old_logp: Tensor | None = None
    group_size: int = 1
    group: Tensor | None = None

    @property
    def per_token(self) -> Tensor:
        """`[B, T]` advantages, 0 where masked."""
        return spread(self.advantages, self.mask)

    def option(self, name: str) -> float:
        """The value of an option."""
        return float(self.options[name])


class Shaped(NamedTuple):
    """What a shaping makes of a mini-batch, `[B, T]` each."""

    advantages: Tensor  # of every token
    trained: Tensor  # which tokens are trained on at all
    marks: Tensor | None = None  # numbers for the row's gate, where it reads them


def spread(advantages: Tensor, mask: Tensor) -> Tensor:
    """One advantage per token from `[B]` or `[B, T]`, 0 where masked."""
    wide = advantages[:, None] if advantages.dim() == 1 else advantages
    return torch.where(mask, wide, 0.0)


class Shaping:
    """Every token gets its sequence's advantage. Rows that do otherwise override this.

    Attributes:
        title: what it does to tokens, in a few words.
        needs: statistics of the current policy `shape` reads: "entropy", "log_pmax", "logp".
        group_needs: what `of_group` reads: "tokens", "old_entropy", "old_logp", "old_log_pmax".
            Empty: groups do not matter.
        measured: options that are measured on the first rollout unless set.
        marks: whether the row's gate reads marks.
        acts_alone: whether marked tokens have a gradient even where their advantage is 0.
    """

    title: str = ""
    needs: tuple[str, ...] = ()
    group_needs: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    marks: bool = False
    acts_alone: bool = False

    def of_group(self, groups: Sequences) -> Tensor:
        """A `[B, T]` column that `shape` reads later, from whole groups."""
        raise NotImplementedError

    def measure(self, entropy: Tensor, mask: Tensor, reduce: Reducer) -> dict[str, float]:
        """Values of the `measured` options, from the first rollout's entropies; none, if there are
        no tokens to measure on."""
        return {}

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        """Token advantages of a mini-batch; the same however it is split."""
        return Shaped(batch.per_token, batch.mask)


class TopEntropy(Shaping):
    """80/20: only tokens whose entropy reaches the (1 - quantile)-quantile of all valid tokens."""

    title = "top 20% entropy tokens"
    needs = ("entropy",)

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        assert batch.entropy is not None
        everyone = reduce.gather(batch.entropy[batch.mask])
        trained = batch.mask
        if everyone.numel():
            quantile = 1 - batch.option("top_entropy_quantile")
            trained = trained & (batch.entropy >= valid_quantile(everyone, quantile))
        return Shaped(batch.per_token * trained, trained)


class EntropyBonus(Shaping):
    """Reasoning with Exploration: A + min(α H, |A|/κ), more credit and less blame where unsure."""

    title = "A + min(α H, |A|/κ)"
    needs = ("entropy",)

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        assert batch.entropy is not None
        advantages = batch.per_token
        most = advantages.abs() / batch.option("kappa")
        bonus = torch.minimum(batch.option("alpha") * batch.entropy, most)
        return Shaped(torch.where(batch.mask, advantages + bonus, 0.0), batch.mask)


class Uncertain(Shaping):
    """Marks the tokens whose entropy exceeds their own completion's quantile."""

    title = "tokens above their completion's entropy quantile marked"
    needs: tuple[str, ...] = ("entropy",)
    marks = True

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        assert batch.entropy is not None
        valid = batch.entropy.masked_fill(~batch.mask, torch.nan)
        limit = valid.nanquantile(batch.option("entropy_quantile"), 1, keepdim=True)
        marks = (batch.mask & (batch.entropy > limit)).to(batch.entropy.dtype)
        return Shaped(batch.per_token, batch.mask, marks)


class UncertainMode(Uncertain):
    """SimKO: `Uncertain`, and of the marked tokens the modes of bad answers weigh more."""

    title = "tokens above their completion's entropy quantile marked, bad modes scaled"
    needs = ("entropy", "logp", "log_pmax")

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        assert batch.logp is not None and batch.log_pmax is not None
        shaped = super().shape(batch, reduce)
        advantages, marks = shaped.advantages, shaped.marks
        assert marks is not None
        mode = is_policy_mode(batch.logp, batch.log_pmax, batch.option("align_tol"))
        worse = mode & (marks > 0) & (advantages < 0)
        scale = select(worse, batch.option("mode_scale"), 1.0, advantages.dtype)
        return shaped._replace(advantages=advantages * scale)


class EntropyScale(Shaping):
    """HAPO's ĥ: log entropy above its quantile, each side scaled to [-1, 1] over the mini-batch."""

    title = "log entropy about its quantile, in [-1, 1]"
    needs = ("entropy",)
    marks = True
    LEAST = 1e-8

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        assert batch.entropy is not None
        z = batch.entropy.clamp_min(self.LEAST).log()
        everyone = reduce.gather(z[batch.mask])
        if everyone.numel():
            z = z - valid_quantile(everyone, batch.option("entropy_quantile"))
        z = torch.where(batch.mask, z, 0.0)
        sides = reduce.maximum(torch.stack([z.amax(), -z.amin()])).clamp_min(1e-12)
        return Shaped(batch.per_token, batch.mask, torch.where(z > 0, z / sides[0], z / sides[1]))


class Covariance(Shaping):
    """What Clip-Cov and KL-Cov share: each token's part of the covariance of A and log π(y)."""

    needs = ("logp",)

    def covariance(self, batch: Sequences, reduce: Reducer) -> tuple[Tensor, float]:
        """(A - mean A)(log π(y) - mean), means over the mini-batch, and its number of tokens."""
        assert batch.logp is not None
        advantages, logp = batch.per_token, torch.where(batch.mask, batch.logp, 0.0)
        sums = torch.stack([batch.mask.to(logp.dtype), advantages.to(logp.dtype), logp]).sum((1, 2))
        count, total_a, total_logp = reduce.sum(sums).unbind()
        count = count.clamp_min(1)
        return (advantages - total_a / count) * (logp - total_logp / count), float(count)


class CovarianceClip(Covariance):
    """Clip-Cov: no gradient for a few tokens of high covariance, drawn at random.

    The draw follows from the tokens of the completion alone, so that it does not depend on how a
    mini-batch is ordered or split, and a resumed run repeats it.
    """

    title = "a random few of high covariance left out"

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        assert batch.logp is not None and batch.old_logp is not None and batch.tokens is not None
        covariance, count = self.covariance(batch, reduce)
        advantages = batch.per_token
        ratio = (batch.logp - batch.old_logp).exp()
        high, low = 1 + batch.option("epsilon_high"), 1 - batch.option("epsilon")
        clipped = (advantages > 0) & (ratio > high) | (advantages < 0) & (ratio < low)
        inside = (covariance > batch.option("cov_low")) & (covariance < batch.option("cov_high"))
        candidates = batch.mask & inside & ~clipped
        keys = draw_keys(batch.tokens, batch.mask)
        number = max(int(batch.option("cov_share") * count), 1)
        drawn = candidates.clone()
        drawn[candidates] = reduce.smallest(keys[candidates], number)
        return Shaped(advantages.masked_fill(drawn, 0.0), batch.mask)


class CovariancePenalty(Covariance):
    """KL-Cov: the tokens of largest covariance marked with the weight of their |log w|."""

    title = "β on the tokens of largest covariance"
    marks = True
    acts_alone = True

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        covariance, count = self.covariance(batch, reduce)
        number = max(int(batch.option("cov_share") * count), 1)
        marks = torch.zeros_like(covariance)
        largest = reduce.smallest(-covariance[batch.mask], number)
        marks[batch.mask] = largest.to(marks.dtype) * batch.option("beta_cov")
        return Shaped(batch.per_token, batch.mask, marks)


class ScoreNormalised(Shaping):
    """Each completion divided by the root of its score's squared norm, relative to the mean."""

    title = "completions x (mean n / n)^exponent, n the score's squared norm"
    needs = ("logp", "log_pmax")
    LEAST = 1e-3

    def shape(self, batch: Sequences, reduce: Reducer) -> Shaped:
        assert batch.logp is not None and batch.log_pmax is not None
        norms = score_norm(batch.logp, batch.log_pmax, batch.mask)
        there = batch.mask.any(1).to(norms.dtype)
        total, count = reduce.sum(torch.stack([norms.sum(), there.sum()])).unbind()
        mean = (total / count.clamp_min(1)).clamp_min(1e-12)
        weight = (mean / norms.clamp_min(self.LEAST * mean)).pow(batch.option("exponent"))
        return Shaped(batch.per_token * weight[:, None].to(batch.advantages.dtype), batch.mask)


def score_norm(logp: Tensor, log_pmax: Tensor, mask: Tensor) -> Tensor:
    """n, `[B]`: the squared norms of e_y - p, summed over a completion, from p_y and p_max alone.

    |e_y - p|² = (1 - p_y)² + Σ_v≠y p_v², of which the mode's term is kept.
    """
    p, top = logp.exp(), log_pmax.exp()
    beside = torch.where(top > p, top, 0.0)
    return torch.where(mask, (1 - p).square() + beside.square(), 0.0).sum(1)


def score_variation(norms: Tensor, group_size: int) -> Tensor:
    """The coefficient of variation of n^½ within a group, mean over groups."""
    roots = norms.sqrt().view(-1, group_size)
    return (roots.std(1) / roots.mean(1).clamp_min(1e-9)).mean()


def draw_keys(tokens: Tensor, mask: Tensor) -> Tensor:
    """`[B, T]` numbers that look random, made of the tokens of each completion and their places."""
    place = mask.cumsum(1)
    mixed = torch.where(mask, _mix(tokens.long() * 1_000_003 + place), 0)
    return _mix(mixed ^ mixed.sum(1, keepdim=True)).double()


def _mix(x: Tensor) -> Tensor:
    """A hash of 64-bit integers (the finaliser of splitmix64)."""
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        x = (x ^ (x >> shift)) * factor
    return x ^ (x >> 31)


def valid_quantile(values: Tensor, q: float) -> Tensor:
    """torch.quantile (linear interpolation) without its limit of 2^24 elements."""
    ordered = values.sort().values
    position = q * (ordered.numel() - 1)
    low = int(position)
    high = min(low + 1, ordered.numel() - 1)
    return torch.lerp(ordered[low], ordered[high], position - low)
