"""Sums over the tokens of one optimizer step, from which every logged number is made."""

import torch
from torch import Tensor

from acpo.engines.trl.forward import LossTerms
from acpo.engines.trl.ranks import Ranks
from acpo.objectives import TokenStats
from acpo.objectives.gates import MAX_LOG_RATIO, segment_mean
from acpo.objectives.loss import evaluate_tokens, kl_penalty
from acpo.objectives.metrics import tally_tokens


class TokenTallies:
    """Totals and counts, added pack by pack on the device and read once."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.names: list[str] = []
        self._sums = torch.zeros(0, 2, device=device)
        self._highest_ratio = torch.zeros((), device=device)
        self.nonfinite = torch.zeros((), device=device)
        self.loss = torch.zeros((), device=device)

    def add(self, terms: LossTerms, outputs: dict[str, Tensor]) -> None:
        """Count the tokens of one pack."""
        self.loss += outputs["loss"].detach().float()
        self.nonfinite += outputs["nonfinite"]
        counted = outputs["computed"] & outputs["logp"].isfinite() & outputs["entropy"].isfinite()
        where = counted.nonzero()[:, 0]
        stats = TokenStats(*(outputs[name][where] for name in TokenStats._fields))
        old = stats.logp if terms.old_logp is None else terms.old_logp[where]
        advantages = terms.advantages[where]
        gated, credit = evaluate_tokens(
            terms.method,
            stats=stats,
            old_logp=old,
            advantages=advantages,
            sequence_mean=segment_mean(terms.sequence_ids[where]),
            entropy_max=terms.entropy_max,
        )
        mask = torch.ones_like(advantages, dtype=torch.bool)
        tallies = tally_tokens(
            terms.method,
            stats=stats,
            old_logp=old,
            advantages=advantages,
            mask=mask,
            gated=gated,
            credit=credit,
        )
        sums = {name: (tally.total, tally.number) for name, tally in tallies.items()}
        log_ratio = (stats.logp - old).abs()
        sums["ratio_overflow"] = ((log_ratio > MAX_LOG_RATIO).sum(), mask.sum())
        if terms.ref_logp is not None:
            kl = kl_penalty(stats.logp, terms.ref_logp[where])
            sums["kl"] = (kl.sum(), mask.sum())
        if where.numel():
            highest = (stats.logp - old).clamp(max=MAX_LOG_RATIO).exp().amax()
            self._highest_ratio = torch.maximum(self._highest_ratio, highest)
        self._accumulate(sums)

    def _accumulate(self, sums: dict[str, tuple[Tensor, Tensor]]) -> None:
        if not self.names:
            self.names = list(sums)
            self._sums = torch.zeros(len(sums), 2, device=self.device)
        pairs = [torch.stack([total.float(), number.float()]) for total, number in sums.values()]
        self._sums += torch.stack(pairs)

    def means(self, ranks: Ranks) -> dict[str, float]:
        """Means over all packs and processes; NaN where nothing was counted."""
        head = torch.stack([self.loss / ranks.count, self.nonfinite])
        sums = ranks.sum(torch.cat([head, self._sums.flatten()]))
        highest = ranks.maximum(self._highest_ratio)
        loss, nonfinite, *rest = sums.tolist()
        totals, numbers = rest[0::2], rest[1::2]
        result = {
            name: total / number if number else float("nan")
            for name, total, number in zip(self.names, totals, numbers, strict=True)
        }
        mass = {
            side: totals[self.names.index(f"update/{side}")]
            for side in ("positive", "nonpositive")
            if f"update/{side}" in self.names
        }
        if mass and sum(mass.values()) > 0:
            result["update/positive_share"] = mass["positive"] / sum(mass.values())
        return {
            "loss": loss,
            "nonfinite_tokens": nonfinite,
            **result,
            "ratio_max": float(highest),
        }
