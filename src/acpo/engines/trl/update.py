"""The packed update: one optimizer step, its sequences laid into packs, the unpacked gradient.

Every normaliser is fixed before the first pack: token weights are those of the whole mini-batch on
all processes, so that how sequences are split into packs changes nothing but the time. Sequences
that cannot have a gradient never enter a pack.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acpo.engines.trl.attention import PackedAttention
from acpo.engines.trl.forward import LossTerms, PolicyRequest
from acpo.engines.trl.metrics import TokenTallies
from acpo.engines.trl.minibatch import MiniBatch
from acpo.engines.trl.packing import Pack, Rows, empty_pack, lay_out
from acpo.engines.trl.ranks import Ranks
from acpo.objectives import Method, TokenStats
from acpo.objectives.methods import SEQUENCE_GATES
from acpo.objectives.shaping import (
    balanced_advantages,
    branch_sums,
    shape_conflicts,
    valid_quantile,
)

Backward = Callable[[Tensor], None]


@dataclass
class UpdateSettings:
    """What an update does, apart from the data.

    Attributes:
        method: the row of the table, options set.
        temperature: rollout temperature.
        budget: most tokens in a pack.
        beta: weight of the KL penalty.
        corrects_kl: multiply the KL estimate by the importance ratio (TRL's
            `use_bias_correction_kl`).
        entropy_coef: weight of the entropy bonus.
        off_policy_threshold: TRL's `off_policy_mask_threshold`.
        float32_head: TRL's `cast_lm_head_to_fp32`.
        logits_bytes: memory for a chunk of logits.
    """

    method: Method
    temperature: float
    budget: int
    beta: float = 0.0
    corrects_kl: bool = False
    entropy_coef: float = 0.0
    off_policy_threshold: float | None = None
    float32_head: bool = False
    logits_bytes: int | None = None

    @property
    def needs_statistics(self) -> bool:
        """Whether advantages or normalisers depend on the current policy at other tokens."""
        return (
            self.method.shaping in ("top_entropy", "conflict", "balance")
            or self.method.options.get("entropy_norm") == "batch_max"
            or self.off_policy_threshold is not None
        )


@dataclass
class Report:
    """What one update did, on this process.

    Attributes:
        tallies: token sums.
        rows_skipped, tokens_skipped: left out before the backbone.
        tokens: went through the backbone.
        capacity: would have fitted in the packs.
        packs: how many.
    """

    tallies: TokenTallies
    rows_skipped: int = 0
    tokens_skipped: int = 0
    tokens: int = 0
    capacity: int = 0
    packs: int = 0


@dataclass
class _Plan:
    """The mini-batch's loss, token by token, `[B, C]` each."""

    advantages: Tensor
    weights: Tensor
    old_logp: Tensor | None
    entropy_max: Tensor | None
    entropy_weights: Tensor | None


class PackedUpdate:
    """Runs optimizer steps and statistics passes over packs."""

    def __init__(
        self,
        settings: UpdateSettings,
        *,
        ranks: Ranks,
        attention: PackedAttention,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.settings, self.ranks, self.attention = settings, ranks, attention
        self.autocast = autocast

    def statistics(self, model: Any, *, ids: Tensor, rows: Rows, first: int) -> TokenStats:
        """Statistics of every target under `model`, `[B, C]` each, 0 where there is none."""
        shape = (ids.shape[0], ids.shape[1] - first)
        out = TokenStats(
            torch.zeros(shape, device=ids.device),
            torch.zeros(shape, device=ids.device),
            torch.zeros(shape, device=ids.device, dtype=torch.bool),
            torch.zeros(shape, device=ids.device),
        )
        chosen = [i for i, length in enumerate(rows.length) if length]
        with torch.no_grad():
            for pack in self._packs(rows, chosen, ids.shape[1]):
                request, where = self._request(ids, pack)
                outputs = self._forward(model, ids, pack, request)
                for name, table in out._asdict().items():
                    table[where[0], where[1] - first] = outputs[name].to(table.dtype)
        return out

    def run(
        self,
        model: Any,
        batch: MiniBatch,
        backward: Backward | None = None,
        no_sync: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> Report:
        """Accumulate one mini-batch's gradient (or only its loss, without `backward`).

        Args:
            model: the policy as wrapped for training.
            batch: this process's sequences.
            backward: called with each pack's loss.
            no_sync: context in which gradients are not exchanged between processes.
        """
        settings = self.settings
        plan = self._plan(model, batch)
        live = batch.mask.any(1)
        if not (settings.beta or settings.entropy_coef):
            live = live & (plan.advantages != 0).any(1)
        chosen = live.nonzero()[:, 0].tolist()
        packs = self._packs(batch.rows, chosen, batch.ids.shape[1])
        report = self._report(batch, chosen, packs)
        for number, pack in enumerate(packs):
            last = number == len(packs) - 1
            with nullcontext() if last or backward is None else no_sync():
                outputs, terms = self._pack_loss(model, batch, plan, pack)
                if backward is not None:
                    backward(outputs["loss"])
            report.tallies.add(terms, outputs)
        return report

    def _packs(self, rows: Rows, chosen: list[int], width: int) -> list[Pack]:
        """This process's packs, then empty ones until every process has as many."""
        packs = lay_out(
            rows, chosen, width=width, budget=self.settings.budget, layout=self.attention.layout
        )
        needed = max(1, self.ranks.most(len(packs)))
        return packs + [empty_pack()] * (needed - len(packs))

    def _plan(self, model: Any, batch: MiniBatch) -> _Plan:
        settings, method = self.settings, self.settings.method
        stats = None
        if settings.needs_statistics:
            with torch.no_grad():
                stats = self.statistics(model, ids=batch.ids, rows=batch.rows, first=batch.first)
        old_logp = batch.columns.get("old_logp")
        if old_logp is None and stats is not None:
            old_logp = stats.logp
        trained = batch.mask
        if method.shaping == "top_entropy":
            assert stats is not None
            trained = self._high_entropy(stats.entropy, batch.mask)
        return _Plan(
            torch.where(trained, self._advantages(batch, stats, old_logp), 0.0),
            self._weights(batch),
            old_logp,
            self._entropy_max(batch, stats),
            self._entropy_weights(trained),
        )

    def _advantages(
        self, batch: MiniBatch, stats: TokenStats | None, old_logp: Tensor | None
    ) -> Tensor:
        """`[B, C]`, importance corrections included."""
        method = self.settings.method
        advantages = batch.advantages[:, None].expand(batch.mask.shape)
        if method.shaping == "conflict":
            assert stats is not None
            advantages = shape_conflicts(
                advantages=batch.advantages,
                hits=batch.columns["conflict_hits"],
                mask=batch.mask,
                entropy=stats.entropy,
                options=method.options,
            )
        elif method.shaping == "balance":
            assert stats is not None
            sums = branch_sums(
                method, advantages=batch.advantages, mask=batch.mask, log_pmax=stats.log_pmax
            )
            advantages = balanced_advantages(
                advantages=batch.advantages, mask=batch.mask, sums=self.ranks.sum(sums)
            )
        elif method.shaping == "entropy_reward":
            advantages = batch.columns["token_advantages"]
        ratio = batch.columns.get("sampling_ratio")
        if ratio is not None:
            # A sequence-level objective multiplies its one value by every token's correction.
            sequence_level = method.gate in SEQUENCE_GATES
            advantages = advantages * (batch.sequence_mean(ratio) if sequence_level else ratio)
        if self.settings.off_policy_threshold is not None:
            assert stats is not None and old_logp is not None
            sampled = batch.columns.get("sampling_logp", old_logp)
            drift = batch.sequence_mean((sampled - stats.logp).nan_to_num(0.0))
            drifted = drift > self.settings.off_policy_threshold
            advantages = advantages.masked_fill(drifted & (batch.advantages < 0)[:, None], 0.0)
        return advantages

    def _weights(self, batch: MiniBatch) -> Tensor:
        """Loss weights whose gradients, averaged over processes, are the mini-batch's."""
        valid = batch.mask.float()
        if self.settings.method.aggregation == "token_mean":
            return valid * self.ranks.count / batch.num_tokens.clamp_min(1.0)
        return valid / valid.sum(1, keepdim=True).clamp_min(1.0) / len(batch)

    def _high_entropy(self, entropy: Tensor, mask: Tensor) -> Tensor:
        everyone = self.ranks.gather(entropy[mask].float())
        if everyone.numel() == 0:
            return mask
        quantile = 1 - float(self.settings.method.options["top_entropy_quantile"])
        return mask & (entropy >= valid_quantile(everyone, quantile))

    def _entropy_max(self, batch: MiniBatch, stats: TokenStats | None) -> Tensor | None:
        norm = self.settings.method.options.get("entropy_norm")
        if norm is None:
            return None
        if not isinstance(norm, str):
            return torch.tensor(float(norm), device=batch.device)
        assert stats is not None
        return self.ranks.maximum(torch.where(batch.mask, stats.entropy, 0.0).amax()).clamp_min(
            1e-8
        )

    def _entropy_weights(self, trained: Tensor) -> Tensor | None:
        if not self.settings.entropy_coef:
            return None
        tokens = self.ranks.sum(trained.sum().float()).clamp_min(1.0)
        return trained * (self.settings.entropy_coef * self.ranks.count / tokens)

    def _pack_loss(
        self, model: Any, batch: MiniBatch, plan: _Plan, pack: Pack
    ) -> tuple[dict[str, Tensor], LossTerms]:
        settings = self.settings
        request, (rows, columns) = self._request(batch.ids, pack)
        at = (rows, columns - batch.first)

        def pick(table: Tensor | None) -> Tensor | None:
            return None if table is None else table[at].float()

        request.loss = LossTerms(
            settings.method,
            plan.advantages[at],
            plan.weights[at],
            pick(plan.old_logp),
            rows,
            plan.entropy_max,
            pick(batch.columns.get("ref_logp")) if settings.beta else None,
            settings.beta,
            settings.corrects_kl,
            pick(plan.entropy_weights),
        )
        return self._forward(model, batch.ids, pack, request), request.loss

    def _request(self, ids: Tensor, pack: Pack) -> tuple[PolicyRequest, tuple[Tensor, Tensor]]:
        states, rows, columns = (
            x.to(ids.device, non_blocking=True) for x in (pack.states, pack.rows, pack.columns)
        )
        request = PolicyRequest(
            states,
            ids[rows, columns],
            self.settings.temperature,
            float(self.settings.method.options["align_tol"]),
            self.settings.float32_head,
            self.settings.logits_bytes,
        )
        return request, (rows, columns)

    def _forward(
        self, model: Any, ids: Tensor, pack: Pack, request: PolicyRequest
    ) -> dict[str, Tensor]:
        source = pack.source.to(ids.device, non_blocking=True)
        inputs: dict[str, Any] = {"input_ids": ids.flatten()[source].view(pack.shape)}
        if self.attention.layout == "packed":
            boundaries = pack.boundaries.to(ids.device, non_blocking=True)
            inputs |= {
                "position_ids": pack.positions.to(ids.device, non_blocking=True)[None],
                "cu_seq_lens_q": boundaries,
                "cu_seq_lens_k": boundaries,
                "max_length_q": pack.longest,
                "max_length_k": pack.longest,
            }
        elif not bool(pack.valid.all()):
            inputs["attention_mask"] = pack.valid.to(ids.device).view(pack.shape).long()
        with self.autocast():
            return model(**inputs, policy=request)

    def _report(self, batch: MiniBatch, chosen: list[int], packs: list[Pack]) -> Report:
        lengths = batch.rows.length
        tokens = sum(lengths[i] for i in chosen)
        capacity = sum(pack.shape[0] * pack.shape[1] for pack in packs if pack.rows.numel())
        if self.attention.layout == "packed":
            capacity = self.settings.budget * sum(1 for pack in packs if pack.rows.numel())
        return Report(
            TokenTallies(batch.device),
            len(batch) - len(chosen),
            sum(lengths) - tokens,
            tokens,
            max(capacity, tokens),
            len(packs),
        )
