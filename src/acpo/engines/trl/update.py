"""The packed update: one optimizer step, its sequences laid into packs, the unpacked gradient.

An advantage takes four steps. The plan makes it one per token and fixes every normaliser over the
whole mini-batch, on all processes, so that how sequences are split into packs changes nothing but
the time; it is a `TokenTerms` of `[B, C]` columns. A pack picks its tokens' share of them. The
wrapped model carries these terms to its head. The head turns them into a loss and its gradient.
Sequences that cannot have a gradient never enter a pack.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acpo.engines.ranks import Ranks
from acpo.engines.trl.forward import Attention, CompiledLayers
from acpo.engines.trl.packing import MiniBatch, Pack, Rows, empty_pack, lay_out
from acpo.head import TokenTerms
from acpo.objectives import Method, TokenStats
from acpo.objectives.batch import sequences
from acpo.objectives.gates import GATES, MAX_LOG_RATIO, segment_mean
from acpo.objectives.loss import evaluate_tokens, kl_penalty, kl_ratio, sequence_divisors
from acpo.objectives.method import entropy_maximum
from acpo.objectives.metrics import Tally, tally_tokens
from acpo.objectives.shaping import Shaped, spread

LEAST_LOG_RATIO = math.log(1e-8)
"""TRL's bound of a correction of 0, whose token it leaves out."""

Backward = Callable[[Tensor], None]


@dataclass
class UpdateSettings:
    """What an update does, apart from the data."""

    method: Method  # the row of the table, options set
    temperature: float  # rollout temperature
    budget: int | None = None  # most tokens in a pack; None until `measure_budget` is asked
    beta: float = 0.0  # weight of the KL penalty
    corrects_kl: bool = False  # multiply the KL estimate by the ratio (`use_bias_correction_kl`)
    entropy_coef: float = 0.0  # weight of the entropy bonus
    off_policy_threshold: float | None = None  # TRL's `off_policy_mask_threshold`


@dataclass
class UpdateReport:
    """What one update did, on this process."""

    tallies: "TokenTallies"  # token sums
    rows_skipped: int  # left out before the backbone
    tokens_skipped: int  # likewise
    tokens: int  # went through the backbone
    capacity: int  # would have fitted in the packs
    packs: int  # how many

    def shares(self, ranks: Ranks, *, rows: int, seconds: float) -> dict[str, float]:
        """How much of a mini-batch of `rows` went through the backbone, and how fast."""
        counts = [self.rows_skipped, rows, self.tokens_skipped, self.tokens, self.capacity]
        counted = ranks.sum(torch.tensor(counts, device=ranks.device))
        skipped, rows_all, tokens_skipped, tokens, capacity = counted.tolist()
        return {
            "update/rows_skipped": skipped / max(rows_all, 1),
            "update/tokens_skipped": tokens_skipped / max(tokens + tokens_skipped, 1),
            "update/pack_fill": tokens / max(capacity, 1),
            "update/packs": float(self.packs),
            "update/tokens_per_second": tokens / max(seconds, 1e-9),
        }


class PackedUpdate:
    """Runs optimizer steps and statistics passes over packs.

    `measure_budget` gives the most tokens in a pack. It is asked once, at the first pass: by then
    the weights are where they will stay.
    """

    def __init__(
        self,
        settings: UpdateSettings,
        *,
        ranks: Ranks,
        attention: Attention,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        compiled: CompiledLayers | None = None,
        measure_budget: Callable[[], int] | None = None,
    ) -> None:
        self.settings, self.ranks, self.attention = settings, ranks, attention
        self.autocast, self.compiled, self._measure_budget = autocast, compiled, measure_budget

    @contextmanager
    def ready(self, policy: Any, *others: Any) -> Iterator[None]:
        """What models need for the passes inside: the attention function, compiled layers."""
        with (
            self.attention.installed(policy, *others),
            nullcontext() if self.compiled is None else self.compiled.installed(),
        ):
            yield

    def statistics(self, model: Any, *, ids: Tensor, rows: Rows, first: int) -> TokenStats:
        """Statistics of every target under `model`, `[B, C]` each, 0 where there is none."""
        shape = (ids.shape[0], ids.shape[1] - first)
        out = TokenStats(*(torch.zeros(shape, device=ids.device) for _ in TokenStats._fields))
        out = out._replace(is_mode=out.is_mode.bool())
        chosen = [i for i, length in enumerate(rows.length) if length]
        settings = self.settings
        wanted = TokenTerms(ids, method=settings.method, temperature=settings.temperature)
        with torch.no_grad():
            for pack in self._packs(rows, chosen, ids.shape[1]):
                pack = pack.on(ids.device)
                terms = wanted.at((pack.rows, pack.columns))
                self._forward(model, ids, pack, terms)
                for table, column in zip(out, terms.stats, strict=True):
                    table[pack.rows, pack.columns - first] = column.to(table.dtype)
        return out

    def mean_entropy(self, model: Any, batch: MiniBatch) -> float:
        """Over every token of every process, those that train nothing included."""
        stats = self.statistics(model, ids=batch.ids, rows=batch.rows, first=batch.first)
        pair = torch.stack([stats.entropy[batch.mask].sum(), batch.mask.sum().float()])
        total, count = self.ranks.sum(pair).tolist()
        return total / max(count, 1.0)

    def run(
        self,
        model: Any,
        batch: MiniBatch,
        backward: Backward | None = None,
        no_sync: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> UpdateReport:
        """Accumulate the gradient of this process's sequences (without `backward`, only the loss).

        Gradients are not exchanged between processes within `no_sync`.
        """
        plan, broken = self._whole(self._plan(model, batch))
        chosen = plan.active().any(1).nonzero()[:, 0].tolist()
        packs = self._packs(batch.rows, chosen, batch.ids.shape[1])
        report = self._report(batch, chosen, packs, broken)
        for number, pack in enumerate(packs):
            last = number == len(packs) - 1
            pack = pack.on(batch.device)
            terms = plan.at((pack.rows, pack.columns - batch.first))
            with nullcontext() if last or backward is None else no_sync():
                loss = self._forward(model, batch.ids, pack, terms)
                if backward is not None:
                    backward(loss)
            report.tallies.add(terms)
        return report

    def _packs(self, rows: Rows, chosen: list[int], width: int) -> list[Pack]:
        """This process's packs, then empty ones until every process has as many."""
        if self.settings.budget is None:
            assert self._measure_budget is not None
            self.settings.budget = self._measure_budget()
        budget, layout = self.settings.budget, self.attention.layout
        packs = lay_out(rows, chosen, width=width, budget=budget, layout=layout)
        needed = max(1, self.ranks.most(len(packs)))
        return packs + [empty_pack()] * (needed - len(packs))

    def _plan(self, model: Any, batch: MiniBatch) -> TokenTerms:
        """The mini-batch's loss, token by token."""
        settings, method = self.settings, self.settings.method
        stats = None
        if method.needs or settings.off_policy_threshold is not None:
            stats = self.statistics(model, ids=batch.ids, rows=batch.rows, first=batch.first)
        old_logp = batch.columns.get("old_logp")
        # On-policy the update's own pass is the rollout's policy: another pass would differ by its
        # dropout and rounding, and ratios that are 1 would not be.
        before = stats.logp if old_logp is None and stats is not None else old_logp
        tokens = batch.ids[:, batch.first :]
        shaped = method.shape(
            sequences(
                method,
                batch.advantages,
                batch.mask,
                entropy=stats and stats.entropy,
                log_pmax=stats and stats.log_pmax,
                logp=stats and stats.logp,
                old_logp=before,
                tokens=tokens,
                group=batch.columns.get("group"),
            ),
            self.ranks,
        )
        return TokenTerms(
            tokens,
            self._corrected(shaped.advantages, batch, stats, before),
            self._weights(batch),
            method=method,
            old_logp=old_logp,
            temperature=settings.temperature,
            sequence_ids=torch.arange(len(batch), device=batch.device)[:, None].expand_as(tokens),
            entropy_max=stats and entropy_maximum(method, stats.entropy, batch.mask, self.ranks),
            ref_logp=batch.columns.get("ref_logp") if settings.beta else None,
            beta=settings.beta,
            corrects_kl=settings.corrects_kl,
            entropy_weights=self._entropy_weights(batch, shaped),
            marks=self._marks(batch, shaped),
        )

    def _marks(self, batch: MiniBatch, shaped: Shaped) -> Tensor | None:
        """The row's marks; for a gate whose ratio is to the sampler, the correction's logarithm."""
        ratio = batch.columns.get("sampling_ratio")
        if ratio is None or not GATES[self.settings.method.gate].to_sampler:
            return shaped.marks
        return torch.where(batch.mask, ratio.log().clamp(LEAST_LOG_RATIO, MAX_LOG_RATIO), 0.0)

    def _whole(self, plan: TokenTerms) -> tuple[TokenTerms, Tensor]:
        """The plan without tokens of which a number is not finite, and how many had a weight."""
        numbers = plan.numbers()
        sound = torch.stack([x.isfinite() for x in numbers.values()]).all(0)
        usable = {k: torch.where(sound, x, 0).float() for k, x in numbers.items()}
        return plan.with_columns(**usable), ((plan.row_weight() != 0) & ~sound).sum()

    def _corrected(
        self,
        advantages: Tensor,
        batch: MiniBatch,
        stats: TokenStats | None,
        old_logp: Tensor | None,
    ) -> Tensor:
        """Advantages with importance corrections and the off-policy mask applied."""
        ratio = batch.columns.get("sampling_ratio")
        if ratio is not None and not GATES[self.settings.method.gate].to_sampler:
            # A sequence-level objective multiplies its one value by every token's correction.
            one = self.settings.method.sequence_level
            advantages = advantages * (batch.sequence_mean(ratio) if one else ratio)
        if self.settings.off_policy_threshold is not None:
            assert stats is not None and old_logp is not None
            sampled = batch.columns.get("sampling_logp", old_logp)
            drift = batch.sequence_mean((sampled - stats.logp).nan_to_num(0.0))
            drifted = drift > self.settings.off_policy_threshold
            advantages = advantages.masked_fill(
                drifted & (spread(batch.advantages, batch.mask) < 0), 0.0
            )
        if stats is not None:  # of which a shaping may have made a plain 0
            advantages = torch.where(stats.entropy.isfinite(), advantages, torch.nan)
        return torch.where(batch.mask, advantages, 0.0)

    def _weights(self, batch: MiniBatch) -> Tensor:
        """Loss weights whose gradients, averaged over processes, are the mini-batch's."""
        valid = batch.mask.float()
        trained = valid * batch.judged[:, None]
        if self.settings.method.aggregation == "token_mean":
            own = self.settings.method.own_count
            tokens = self.ranks.sum(valid.sum()) if own else batch.num_tokens
            return trained * self.ranks.count / tokens.clamp_min(1.0)
        return trained / sequence_divisors(self.settings.method, valid) / len(batch)

    def _entropy_weights(self, batch: MiniBatch, shaped: Shaped) -> Tensor | None:
        if not self.settings.entropy_coef:
            return None
        tokens = self.ranks.sum(shaped.trained.sum().float()).clamp_min(1.0)
        each = self.settings.entropy_coef * self.ranks.count / tokens
        return shaped.trained * batch.judged[:, None] * each

    def _forward(self, model: Any, ids: Tensor, pack: Pack, terms: TokenTerms) -> Tensor:
        terms.states = pack.states
        inputs: dict[str, Any] = {"input_ids": ids.flatten()[pack.source].view(pack.shape)}
        if self.attention.layout == "packed":
            inputs["position_ids"] = pack.positions[None]
            inputs |= dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), pack.boundaries)
            inputs |= dict.fromkeys(("max_length_q", "max_length_k"), pack.longest)
        elif pack.tokens < len(pack.valid):
            inputs["attention_mask"] = pack.valid.view(pack.shape).long()
        with self.autocast():
            return model(**inputs, policy=terms)

    def _report(
        self, batch: MiniBatch, chosen: list[int], packs: list[Pack], broken: Tensor
    ) -> UpdateReport:
        used = [pack for pack in packs if pack.rows.numel()]
        tokens = sum(pack.tokens for pack in used)
        capacity = sum(len(pack.source) for pack in used)
        if self.attention.layout == "packed":
            assert self.settings.budget is not None
            capacity = self.settings.budget * len(used)
        return UpdateReport(
            TokenTallies(broken),
            rows_skipped=len(batch) - len(chosen),
            tokens_skipped=sum(batch.rows.length) - tokens,
            tokens=tokens,
            capacity=max(capacity, tokens),
            packs=len(packs),
        )


class TokenTallies:
    """Totals and counts over the tokens of an update, added pack by pack and read once.

    Those that reach no pack, because a number of theirs is not finite, are the first `nonfinite`.
    """

    def __init__(self, nonfinite: Tensor) -> None:
        self.names: list[str] = []
        self._nonfinite = nonfinite.float()
        self._sums = self._loss = torch.zeros_like(self._nonfinite)
        self._highest_ratio = torch.full_like(self._nonfinite, -torch.inf)

    def add(self, terms: TokenTerms) -> None:
        """Count the tokens of one pack, once its loss has been computed."""
        self._loss = self._loss + terms.loss
        self._nonfinite = self._nonfinite + terms.nonfinite
        counted = terms.computed & terms.stats.logp.isfinite() & terms.stats.entropy.isfinite()
        where = counted.nonzero()[:, 0]
        here = terms.at(where)
        stats = TokenStats(*(column[where] for column in terms.stats))
        assert here.advantages is not None and here.sequence_ids is not None
        inputs = here.inputs(stats, segment_mean(here.sequence_ids))
        gated, credit = evaluate_tokens(terms.method, inputs)
        mask = torch.ones_like(here.advantages, dtype=torch.bool)
        sums = tally_tokens(terms.method, inputs, mask, gated, credit)
        log_ratio = stats.logp - inputs.old_logp
        sums["ratio_overflow"] = Tally((log_ratio.abs() > MAX_LOG_RATIO).sum(), mask.sum())
        if here.ref_logp is not None:
            kl = kl_penalty(stats.logp, here.ref_logp)
            if terms.corrects_kl:
                kl = kl * kl_ratio(terms.method, log_ratio, inputs.sequence_mean)
            sums["kl"] = Tally(kl.sum(), mask.sum())
        if where.numel():
            highest = log_ratio.clamp(max=MAX_LOG_RATIO).exp().amax()
            self._highest_ratio = torch.maximum(self._highest_ratio, highest)
        pairs = [torch.stack([total.float(), number.float()]) for total, number in sums.values()]
        self.names, self._sums = list(sums), self._sums + torch.stack(pairs)

    def means(self, ranks: Ranks) -> dict[str, float]:
        """Means over all packs and processes; NaN where nothing was counted."""
        head = torch.stack([self._loss / ranks.count, self._nonfinite])
        sums = ranks.sum(torch.cat([head, self._sums.flatten()]))
        highest = float(ranks.maximum(self._highest_ratio))
        loss, nonfinite, *rest = sums.tolist()
        totals, numbers = rest[0::2], rest[1::2]
        result = {
            name: total / number if number else float("nan")
            for name, total, number in zip(self.names, totals, numbers, strict=True)
        }
        total = dict(zip(self.names, totals, strict=True))
        positive = total.get("update/positive", 0.0)
        mass = positive + total.get("update/nonpositive", 0.0)
        return {
            "loss": loss,
            "nonfinite_tokens": nonfinite,
            **result,
            "update/positive_share": positive / mass if mass > 0 else float("nan"),
            "ratio_max": highest if highest > 0 else float("nan"),
        }
