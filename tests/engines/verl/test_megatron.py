"""Through Megatron's output head, each rank with half the vocabulary, as by the definition."""

import pytest
import torch

from acpo.objectives import METHODS, dense_loss, get_method
from engines.verl.launch import run_ranks
from engines.verl.rollouts import (
    ELSEWHERE,
    GROUP,
    PROMPT,
    THEIRS,
    VOCABULARY,
    advantages,
    sample,
    save_model,
)

# These logits are far from the old policy's, where VESPO's weight of a sequence is 0.
CASES = {
    name: {"method": name}
    for name, method in METHODS.items()
    if name not in (*THEIRS, *ELSEWHERE, "vespo") and not method.needs_whole_batch
}
CASES |= {f"{name}, T=0.7": {**case, "temperature": 0.7} for name, case in CASES.items()}
CASES |= {
    name: {"method": name, "options": {"entropy_norm": 4.2}}
    for name in ("shannon", "shannon_offset")
}
# Rows that look at the whole mini-batch first.
CASES |= {
    f"{name}, look-ahead": {"method": name}
    for name in ("shannon", "8020", "acpo_balanced", "global_sg_balanced")
}
CASES["gtpo, look-ahead"] = {"method": "gtpo", "options": {"initial_entropy": 1.0}}
CASES |= {
    f"{name}, bfloat16, T={t}": {"method": name, "dtype": "bfloat16", "temperature": t}
    for name in ("acpo", "global_sg")
    for t in (0.7, 1.0, 1.3)
}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("head")
    rollouts = sample(save_model(folder / "model"))
    lengths = rollouts.attention.sum(1)
    logits = 3 * torch.randn(
        int(lengths.sum()), VOCABULARY, generator=torch.Generator().manual_seed(2)
    )
    # The mode itself at every third token, and a tie across the two slices at one of them.
    targets = torch.roll(rollouts.ids[rollouts.attention.bool()], -1)
    top = logits.amax(1) + 1
    logits[torch.arange(0, len(logits), 3), targets[::3]] = top[::3]
    ends = lengths.cumsum(0)
    tied = int(ends[1]) - 2
    logits[tied, 5] = logits[tied, VOCABULARY - 5] = top[tied]
    torch.save({"cases": CASES, "rollouts": rollouts, "logits": logits}, folder / "job.pt")
    return rollouts, logits, run_ranks("head_worker", folder, 2)[2]


def by_definition(rollouts, logits, case):
    temperature = case.get("temperature", 1.0)
    if "dtype" in case:  # the logits as verl scales them
        dtype = getattr(torch, case["dtype"])
        logits = (logits.to(dtype) / torch.tensor(temperature, dtype=dtype)).float() * temperature
    leaf = logits.clone().requires_grad_()
    padded = torch.zeros(*rollouts.ids.shape, VOCABULARY)
    padded[rollouts.attention.bool()] = leaf
    loss = dense_loss(
        get_method(case["method"], **case.get("options", {})),
        logits=padded[:, PROMPT - 1 : -1],
        tokens=rollouts.responses,
        old_logp=rollouts.old_logp,
        advantages=advantages(rollouts, case["method"]),
        mask=rollouts.mask,
        temperature=temperature,
        group_size=GROUP,
    )
    loss.backward()
    return loss.detach(), leaf.grad


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_the_definition(job, name):
    rollouts, logits, ranks = job
    loss, gradient = by_definition(rollouts, logits, CASES[name])
    got = torch.cat([rank[name]["gradient"] for rank in ranks], 1)
    for rank in ranks:
        torch.testing.assert_close(rank[name]["loss"], loss, rtol=1e-5, atol=1e-5)
        assert rank[name]["engine"] == "ACPOMegatronEngineWithLMHead"
    assert gradient.norm() > 1e-3
    digits = 8e-3 if "dtype" in CASES[name] else 1e-5  # of bfloat16 gradients
    assert (got - gradient).norm() < digits * gradient.norm()
