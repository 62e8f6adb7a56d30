"""The static sampler says what the model says: greedy as `generate`, else by its distribution."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from acpo.errors import ACPOError
from acpo.sampling import StaticSampler
from acpo.sampling.draw import draw, uniform_table
from acpo.tasks.tiny import tiny_model

PAD, EOS = 0, 1
PROMPTS = [[5, 6, 7], [3], [9, 10, 11, 12, 13, 2, 4, 8, 3, 3, 4], [3], [5, 6, 7]]


def llama(seed=0):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=23,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        initializer_range=0.4,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def sharp(model):
    """Random weights are nearly uniform; larger ones have preferences."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    return model.eval()


MODELS = {"llama": llama, "qwen3": lambda: sharp(tiny_model(23, hidden_size=32))}


def sampler(model, **options):
    options = {"rows": 8, "max_new_tokens": 12, "eos": [EOS], "pad": PAD, **options}
    return StaticSampler(model, **options)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [8, 2])
def test_greedy_equals_generate(name, rows):
    model = MODELS[name]()
    ours = sampler(model, temperature=0.0, rows=rows).sample(PROMPTS, seed=(0,))
    for prompt, tokens in zip(PROMPTS, ours.tokens, strict=True):
        theirs = model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=PAD
        )[0, len(prompt) :].tolist()
        assert tokens == theirs


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logp_of_sampled_tokens_is_the_forward_pass(name, temperature):
    model = MODELS[name]()
    out = sampler(model, temperature=temperature, eos=[EOS, 4]).sample(PROMPTS * 4, seed=(1, 2))
    for prompt, tokens, logp in zip(PROMPTS * 4, out.tokens, out.logp, strict=True):
        ids = torch.tensor([[*prompt, *tokens]])
        with torch.no_grad():
            logits = model(ids).logits[0, len(prompt) - 1 : -1].float() / temperature
        expected = torch.log_softmax(logits, -1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(logp), expected, rtol=1e-4, atol=1e-5)


def test_completions_end_at_the_first_end_and_not_before():
    out = sampler(llama(), eos=[EOS, 4, 7]).sample(PROMPTS * 20, seed=(3,))
    ended = [tokens for tokens in out.tokens if tokens[-1] in (EOS, 4, 7)]
    assert ended and all(not set(tokens[:-1]) & {EOS, 4, 7} for tokens in out.tokens)
    assert all(len(t) == 12 for t in out.tokens if t[-1] not in (EOS, 4, 7))
    assert all(len(t) == len(s) for t, s in zip(out.tokens, out.logp, strict=True))


def test_stops_when_every_row_has_ended(monkeypatch):
    steps = []
    model = llama()
    everything = sampler(model, eos=range(23), max_new_tokens=200)
    step = everything._step
    monkeypatch.setattr(everything, "_step", lambda *a: (steps.append(1), step(*a)))
    out = everything.sample(PROMPTS, seed=(0,))
    assert all(len(tokens) == 1 for tokens in out.tokens)
    assert not steps, "the first token ended them all"


def test_draws_depend_on_seed_and_place_not_on_chunks():
    model = llama()
    whole = sampler(model, rows=64).sample(PROMPTS, seed=(7, 1)).tokens
    assert sampler(model, rows=2).sample(PROMPTS, seed=(7, 1)).tokens == whole
    assert sampler(model, rows=64).sample(PROMPTS, seed=(7, 2)).tokens != whole
    reused = sampler(model, rows=64)
    reused.sample([[2] * 40], seed=(0,))
    assert reused.sample(PROMPTS, seed=(7, 1)).tokens == whole


def test_reads_the_weights_of_the_moment_and_leaves_the_model_as_it_was():
    model = llama()
    model.train()
    kept = sampler(model, temperature=0.0)
    before = kept.sample(PROMPTS, seed=(0,)).tokens
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    after = kept.sample(PROMPTS, seed=(0,)).tokens
    assert after == sampler(model, temperature=0.0).sample(PROMPTS, seed=(0,)).tokens != before
    assert model.training and model.config._attn_implementation == "sdpa"


def test_draws_follow_the_distribution():
    logits = torch.tensor([0.0, 2.0, -torch.inf, 1.0, -1.0])
    uniforms = uniform_table(1, 20_000, (4,))[0]
    tokens, logp = draw(logits.expand(20_000, 5), uniforms)
    p = torch.softmax(logits, -1)
    counts = torch.bincount(tokens, minlength=5) / 20_000
    assert counts[2] == 0
    assert (counts - p).abs().max() < 0.01
    torch.testing.assert_close(logp.exp(), p[tokens])
    edges = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert draw(torch.tensor([[-torch.inf, 0.0, -torch.inf]] * 2), edges)[0].tolist() == [1, 1]


def test_refusals():
    with pytest.raises(ACPOError, match="prompts"):
        sampler(llama()).sample([[3], []], seed=(0,))
    with pytest.raises(ACPOError, match="rows=0"):
        sampler(llama(), rows=0)
    windowed = llama()
    windowed.config.layer_types = ["sliding_attention"] * 3
    with pytest.raises(ACPOError, match="sliding_attention"):
        sampler(windowed)


class Replayed:
    """What a captured graph does, without CUDA: the same step, at the length it was captured at."""

    def __init__(self, sampler, cache, state):
        self.sampler, self.cache, self.state, self.visible = sampler, cache, state, cache.visible
        self.replays = 0

    def replay(self):
        assert self.cache.visible == self.visible
        self.replays += 1
        self.sampler._step(self.cache, self.state)


def test_graphs_pad_chunks_and_outlive_calls(monkeypatch):
    model = llama()
    plain = sampler(model, rows=64, max_new_tokens=160)
    graphed = sampler(model, rows=4, max_new_tokens=160, graphs=True)
    monkeypatch.setattr(graphed, "_capture", lambda cache, state: Replayed(graphed, cache, state))
    for seed in (1, 2):
        ours = graphed.sample(PROMPTS, seed=(seed,))
        assert ours.tokens == plain.sample(PROMPTS, seed=(seed,)).tokens
    assert set(graphed._captured) == {256, 384}, "one per length, for both chunks and both calls"
    assert all(graph.replays > 20 for graph in graphed._captured.values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_graphs_on_a_gpu_say_what_plain_steps_say():
    model = llama().cuda()
    plain = sampler(model, rows=8, max_new_tokens=100, graphs=False)
    graphed = sampler(model, rows=8, max_new_tokens=100)
    for seed in (1, 2):
        ours = graphed.sample(PROMPTS, seed=(seed,))
        theirs = plain.sample(PROMPTS, seed=(seed,))
        assert ours.tokens == theirs.tokens
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.05)
