"""The sampler's Triton kernels against plain torch. Run by head/test_triton.py in Triton's
interpreter, and directly on a GPU: `pytest tests/sampling/kernel_cases.py`."""

import pytest
import torch

from acpo.head.projection import Projection
from acpo.sampling import kernels
from acpo.sampling.draw import NOTHING

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter multiplies bfloat16 as the integers it is stored in.
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
# One block; blocks of which the last is not full.
VOCABS = (5, 300, 4096, 9001)


def inverted(z, u):
    """The first token whose cumulative probability exceeds `u`, one row after another."""
    tokens = []
    for row, point in zip(z.double().cpu(), u.tolist(), strict=True):
        cumulative = torch.softmax(row, -1).cumsum(-1)
        tokens.append(int((cumulative <= point * cumulative[-1]).sum()))
    return torch.tensor(tokens)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize(
    "projection", [Projection(), Projection(0.7, None, 1.3), Projection(1.2, 5.0, 0.9)]
)
def test_draw(vocab, projection):
    g = torch.Generator().manual_seed(vocab)
    raw = 3 * torch.randn(24, vocab, generator=g)
    raw[0] -= 5000.0  # a running maximum must not start at 0
    raw[1, 1:] = -torch.inf
    uniforms = torch.rand(24, generator=g, dtype=torch.float64)
    tokens, logp = kernels.draw(raw.to(DEVICE), uniforms.to(DEVICE), projection)
    z = projection.scaled(raw.double())
    assert torch.equal(tokens.cpu(), inverted(z, uniforms))
    expected = torch.log_softmax(z, -1).gather(-1, tokens.cpu()[:, None])[:, 0]
    torch.testing.assert_close(logp.cpu().double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("vocab", VOCABS)
def test_the_ends_of_the_uniform_draw_no_impossible_token(vocab):
    raw = torch.full((3, vocab), -torch.inf)
    raw[:, 1] = raw[:, vocab // 2] = 0.0
    ends = torch.tensor([0.0, 1 - 2**-53, 1.0], dtype=torch.float64)
    tokens, _ = kernels.draw(raw.to(DEVICE), ends.to(DEVICE), Projection())
    assert tokens.tolist() == [1, vocab // 2, vocab // 2]


@pytest.mark.parametrize("projection", [Projection(), Projection(1.0, 5.0)])
def test_what_is_not_finite_draws_nothing(projection):
    raw = torch.zeros(5, 5000)
    raw[0, 4500] = torch.nan
    raw[1] = torch.nan
    raw[2] = -torch.inf
    raw[3, 7] = torch.inf
    half = torch.full((5,), 0.5, dtype=torch.float64)
    tokens, logp = kernels.draw(raw.to(DEVICE), half.to(DEVICE), projection)
    capped = projection.softcap is not None  # which makes of infinity the cap
    lost = [True, True, not capped, not capped, False]
    assert [token == NOTHING for token in tokens.tolist()] == lost
    assert logp.isnan().tolist() == lost


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize(("heads", "kept", "width"), [(4, 4, 16), (14, 2, 64), (6, 2, 40)])
def test_attention(dtype, heads, kept, width):
    g = torch.Generator().manual_seed(heads)
    filled = torch.tensor([0, 1, 63, 64, 65, 150])
    slots = torch.tensor([5, 0, 2, 6, 1, 3])
    rows, length = len(slots), 160

    def noise(*shape):
        return torch.randn(*shape, generator=g).to(DEVICE, dtype)

    cache = [noise(8, kept, length, width) for _ in range(2)]
    for slot, count in zip(slots.tolist(), filled.tolist(), strict=True):
        for states in cache:
            states[slot, :, count:] = torch.nan  # places beyond are never read
    query = noise(rows, 1, heads, width).transpose(1, 2)
    key, value = (noise(rows, 1, kept, width).transpose(1, 2) for _ in range(2))
    before = [states.clone() for states in cache]
    out = kernels.attend(
        query, key, value, *cache, slots.to(DEVICE), filled.to(DEVICE), scaling=0.3
    ).view(rows, heads, width)
    for row, (slot, count) in enumerate(zip(slots.tolist(), filled.tolist(), strict=True)):
        all_keys, all_values = (
            torch.cat([states[slot, :, :count], new[row]], 1).double()
            for states, new in zip(before, (key, value), strict=True)
        )
        for head in range(heads):
            of = head // (heads // kept)
            scores = 0.3 * all_keys[of] @ query[row, head, 0].double()
            expected = torch.softmax(scores, 0) @ all_values[of]
            close = 2e-2 if dtype == HALF else 1e-5
            torch.testing.assert_close(out[row, head].double(), expected, rtol=close, atol=close)
        for states, old, new in zip(cache, before, (key, value), strict=True):
            assert torch.equal(states[slot, :, count], new[row, :, 0])
            assert torch.equal(states[slot, :, :count], old[slot, :, :count])
    untouched = [slot for slot in range(8) if slot not in slots.tolist()]
    for states, old in zip(cache, before, strict=True):
        assert torch.equal(states[untouched], old[untouched])


def test_a_rollout_by_kernels_says_what_plain_torch_says():
    from sampling.tinymodels import PROMPTS, by_forward_passes, llama, sampler

    model = llama()
    ours = sampler(model.to(DEVICE), rows=3, max_new_tokens=6, graphs=False, compiled=False)
    samples = ours.sample(PROMPTS, seed=(5,))
    assert samples.tokens == by_forward_passes(model.cpu(), PROMPTS, seed=(5,), new_tokens=6)
