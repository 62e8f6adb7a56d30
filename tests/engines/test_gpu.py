"""The update on a GPU: the attention kernel, compiled layers, packs in bfloat16."""

import pytest
import torch
import torch.nn.functional as F

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from acpo.engines.attention import packed_attention
from acpo.engines.trl.safety import LEAK, second_sequence
from acpo.evaluate.backends import Sampling
from acpo.evaluate.backends.decoder import Decoder, Job
from acpo.evaluate.backends.static import StaticDecoder, make_decoder
from engines.tiny import recorded, tiny_model
from engines.worker import fixed_rollout

pytestmark = pytest.mark.gpu
ON_GPU = {"use_cpu": False, "bf16": True, "rollout_func": fixed_rollout}


@pytest.mark.parametrize("heads", [(14, 2), (16, 8), (4, 4)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_packed_attention_is_each_sequences_own(heads, scale):
    g = torch.Generator(device="cuda").manual_seed(0)
    lengths = [5, 130, 1, 64]
    total, dim = sum(lengths), 64
    shapes = [(1, heads[0], total, dim), (1, heads[1], total, dim), (1, heads[1], total, dim)]
    wide = [torch.randn(s, generator=g, device="cuda", requires_grad=True) for s in shapes]
    half = [x.detach().bfloat16().requires_grad_() for x in wide]
    boundaries = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], device="cuda").int()
    out, _ = packed_attention(
        None, *half, None, scaling=scale, cu_seq_lens_q=boundaries, max_length_q=max(lengths)
    )
    parts, start = [], 0
    for length in lengths:
        q, k, v = (x[:, :, start : start + length] for x in wide)
        part = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        parts.append(part.transpose(1, 2))
        start += length
    expected = torch.cat(parts, 1)
    seed = torch.randn(expected.shape, generator=g, device="cuda")
    ours = torch.autograd.grad((out.float() * seed).sum(), half)
    theirs = torch.autograd.grad((expected * seed).sum(), wide)
    for a, b in zip((out, *ours), (expected, *theirs), strict=True):
        assert (a.float() - b).norm() / b.norm() < 1e-2


def cosine(a, b):
    return float(F.cosine_similarity(a.double(), b.double(), dim=0))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_compiled_layers_give_the_eager_gradient_and_compile_once(tmp_path, checkpointing):
    settings = {**ON_GPU, "num_iterations": 2, "max_steps": 4, "max_tokens_per_pack": 64}
    settings |= {"gradient_checkpointing": checkpointing, "max_completion_length": 12}
    _, eager = recorded(tmp_path, compile_layers=False, **settings)
    trainer, compiled = recorded(tmp_path, **settings)
    assert trainer.packed.attention.layout == "packed" and trainer.packed.compiled is not None
    assert cosine(compiled[0], eager[0]) >= 0.9998
    graphs = [log["update/compiled_graphs"] for log in trainer.state.log_history[:-1]]
    assert graphs[1] == graphs[-1], graphs


def test_packed_and_padded_agree_in_bfloat16(tmp_path):
    _, padded = recorded(tmp_path, update_layout="padded", **ON_GPU)
    trainer, packed = recorded(tmp_path, compile_layers=False, **ON_GPU)
    assert cosine(packed[0], padded[0]) >= 0.999
    assert second_sequence(trainer.packed, trainer.policy, trainer.model)[1] <= LEAK


def test_evaluations_sample_through_graphs():
    model, sampling = tiny_model().cuda().eval(), Sampling(max_tokens=40)
    work = [Job(n, [5 + n, 6, 7][: 1 + n % 3], n) for n in range(12)]
    shared = {"ends": frozenset({1}), "batch_size": 5}
    ours = make_decoder(model, sampling, longest=3, **shared)
    assert isinstance(ours, StaticDecoder)
    wanted = {done.key: done.tokens for done in Decoder(model, sampling, **shared).run(work)}
    assert {done.key: done.tokens for done in ours.run(work)} == wanted
    for other in (sampling._replace(top_p=0.9), sampling._replace(stop=("x",))):
        assert isinstance(make_decoder(model, other, longest=3, **shared), Decoder)


def test_the_static_sampler_is_on_policy(tmp_path):
    settings = {"use_cpu": False, "bf16": True, "sampler": "static", "max_steps": 2}
    model = tiny_model().cuda()
    trainer, gradients = recorded(tmp_path, model, steps_per_generation=2, **settings)
    assert trainer.state.log_history[0]["ratio_max"] == pytest.approx(1.0, abs=2e-2)
    assert all(torch.isfinite(g).all() and g.norm() > 0 for g in gradients)
