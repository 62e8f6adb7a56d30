"""The gap between two sets of probabilities of the same tokens, against numbers made by hand."""

import math
import sys
from pathlib import Path

import pytest
import torch

from acpo.errors import ACPOError
from acpo.objectives import METHODS, TokenStats, stats_from_logits
from acpo.objectives.metrics import mode_exposed

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from sampler_gap import sampler_gap

sys.path.pop(0)  # modules there have the names of folders here


def stats(p: list[list[float]], top: list[list[float]], aligned: list[list[bool]]) -> TokenStats:
    logp, log_pmax = torch.tensor(p).log(), torch.tensor(top).log()
    return TokenStats(logp, log_pmax, torch.tensor(aligned), torch.zeros_like(logp))


# Two completions, of two tokens and of one. The second token is the sampler's mode, by a hair.
SAMPLER = stats([[0.8, 0.42], [0.5, 1.0]], [[0.8, 0.42], [0.5, 1.0]], [[True, True], [True, True]])
TRAINER = stats([[0.8, 0.40], [0.6, 1.0]], [[0.8, 0.41], [0.6, 1.0]], [[True, False], [True, True]])
MASK = torch.tensor([[True, True], [True, False]])
ADVANTAGES = torch.tensor([1.0, -1.0])


def measured(**changes):
    given = {"sampler": SAMPLER, "trainer": TRAINER, "advantages": ADVANTAGES, "mask": MASK}
    return sampler_gap(**{**given, **changes})


def test_differences_and_ratios():
    found = measured()
    second, third = math.log(0.40 / 0.42), math.log(0.6 / 0.5)
    assert (found["tokens"], found["sequences"]) == (3, 2)
    assert found["difference"]["mean"] == pytest.approx((-second + third) / 3, rel=1e-5)
    assert found["difference"]["q100"] == pytest.approx(third, rel=1e-5)
    assert found["kl"] == pytest.approx(-(second + third) / 3, rel=1e-5)
    assert found["w"]["q100"] == pytest.approx(1.2, rel=1e-5)
    whole = [0.40 / 0.42, 1.2]
    assert found["sequence_w"]["mean"] == pytest.approx(sum(whole) / 2, rel=1e-5)
    share = sum(whole) ** 2 / sum(w * w for w in whole) / 2
    assert found["sequence_w"]["effective_share"] == pytest.approx(share, rel=1e-5)
    assert found["sequence_w"]["over_cap"] == 0
    assert measured(clip_max=1.1)["sequence_w"]["over_cap"] == 0.5


def test_modes_that_are_lost_and_what_mends_them():
    mode = measured()["mode"]
    assert mode["aligned_sampler"] == 1 and mode["aligned_trainer"] == pytest.approx(2 / 3)
    assert mode["aligned_to_mismatched"] == pytest.approx(1 / 3)
    assert mode["mismatched_to_aligned"] == 0
    assert mode["lost_margin"]["q100"] == pytest.approx(0.01, rel=1e-4)
    assert mode["align_tol"]["0.001"]["mended"] == 0
    assert mode["align_tol"]["0.03"] == {"mended": 1.0, "swallowed": 0.0}


def test_credit_and_update_by_row():
    rows = measured()["rows"]
    assert rows["sapo"]["credit_change"] == 0
    assert rows["sapo"]["update_change_sampler_statistics"] == pytest.approx(0, abs=1e-9)
    # Aligned: 2 + δ; mismatched: 3 δ. Elsewhere δ alone moves, by the difference of p_max.
    lost = (2 + 0.58) - 3 * 0.59
    assert rows["acpo"]["credit_change"] == pytest.approx((lost + 0.1) / 3, rel=1e-4)
    assert rows["grpo"]["update_change_correction"] == pytest.approx(
        math.sqrt(2 * (0.40 / 0.42 - 1) ** 2 + 0.2**2) / math.sqrt(3), rel=1e-4
    )
    # GRPO's slope is w itself inside the clip: w - 1 at every token, 0 beyond 1.2 for A < 0.
    assert rows["grpo"]["update_change_sampler_ratio"] == pytest.approx(
        math.sqrt((0.40 / 0.42 - 1) ** 2 + 0.2**2) / math.sqrt(3), rel=1e-4
    )


@pytest.mark.parametrize(("sign", "most"), [(1.0, 1e-6), (-1.0, 0.035)])
def test_a_lost_mode_changes_acpos_credit_and_hardly_its_update(sign, most):
    """At w = 1 both routes give a token 3δ, or 3(1 - δ) to within 2/τ: the switch is continuous."""
    tied = stats([[0.4]], [[0.4]], [[True]])
    lost = tied._replace(is_mode=torch.tensor([[False]]))
    found = sampler_gap(
        sampler=tied,
        trainer=lost,
        advantages=torch.tensor([sign]),
        mask=torch.tensor([[True]]),
        methods=["acpo", "acpo_no_routing"],
    )["rows"]
    assert found["acpo"]["credit_change"] > 0.7
    assert found["acpo"]["update_change_sampler_statistics"] < most
    assert found["acpo_no_routing"]["credit_change"] == 0
    assert found["acpo_no_routing"]["update_change_sampler_statistics"] > 0.3


def test_nothing_is_changed_where_there_is_no_gap():
    found = measured(sampler=TRAINER)
    assert found["difference"]["q100"] == 0 and found["mode"]["aligned_to_mismatched"] == 0
    for row in found["rows"].values():
        assert all(value == 0 for value in row.values())


def test_tokens_the_sampler_could_not_score_are_left_out():
    logp = SAMPLER.logp.clone()
    logp[0, 1] = math.nan
    found = measured(sampler=SAMPLER._replace(logp=logp))
    assert found["tokens"] == 2 and found["mode"]["aligned_to_mismatched"] == 0
    assert found["sequence_w"]["q100"] == pytest.approx(1.2, rel=1e-5)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ACPOError, match="mask is false wherever"):
        measured(mask=torch.zeros_like(MASK))
    row = next(name for name, row in METHODS.items() if row.needs_whole_batch)
    with pytest.raises(ACPOError, match=f"method {row!r} looks at whole batches"):
        measured(methods=[row])


def test_exposed_tokens_are_those_a_small_gap_could_turn():
    own = mode_exposed(sampling_logp=SAMPLER.logp, stats=TRAINER, mask=MASK)
    assert own == pytest.approx(1 / 3)
    assert mode_exposed(sampling_logp=TRAINER.logp, stats=TRAINER, mask=MASK) == 0
    assert mode_exposed(sampling_logp=SAMPLER.logp, stats=TRAINER, mask=~MASK) == 0


def test_rounding_loses_modes_at_ties_and_nowhere_else():
    """Logits in steps of 1/8, half of them tied at the top: noise of 1e-3 turns ties alone."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(0, 24, (4, 64, 16), generator=generator) / 8.0
    logits[:, ::2, 3] = logits[:, ::2].amax(-1)
    tokens = logits.argmax(-1)
    noisy = logits + 1e-3 * torch.randn(logits.shape, generator=generator)
    ours = stats_from_logits(logits=noisy, tokens=tokens)
    exact = stats_from_logits(logits=logits, tokens=tokens)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    found = measured(sampler=exact, trainer=ours, advantages=torch.ones(4), mask=mask)
    lost = exact.is_mode & ~ours.is_mode
    top = logits.topk(2).values
    assert lost.any() and (top[lost][:, 0] == top[lost][:, 1]).all()
    assert found["mode"]["align_tol"]["0.01"]["mended"] == 1
