"""The static sampler says what the model says: greedy as `generate`, else by its distribution."""

import pytest
import torch
from transformers import (
    DogeConfig,
    DogeForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
)

from acpo.errors import ACPOError
from acpo.head.projection import Projection
from acpo.sampling import sampler as sampler_module
from acpo.sampling.draw import NOTHING, draw, greedy, uniform_table
from sampling.tinymodels import EOS, MODELS, PAD, PROMPTS, by_forward_passes, llama, sampler


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


def counted_steps(ours, monkeypatch):
    """How many rows each step of a sampler advanced."""
    sizes, step = [], ours._step
    monkeypatch.setattr(ours, "_step", lambda cache, size: (sizes.append(size), step(cache, size)))
    return sizes


def test_stops_when_every_row_has_ended(monkeypatch):
    everything = sampler(llama(), eos=range(23), max_new_tokens=200)
    steps = counted_steps(everything, monkeypatch)
    out = everything.sample(PROMPTS, seed=(0,))
    assert all(len(tokens) == 1 for tokens in out.tokens)
    assert not steps, "the first token ended them all"


ROPES = {
    "plain": {},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}


@pytest.mark.parametrize(("rope", "tied"), [("plain", False), ("linear", True), ("yarn", True)])
def test_tokens_are_those_of_a_plain_loop(rope, tied):
    options = {"rope_parameters": ROPES[rope]} if ROPES[rope] else {}
    model = llama(**options, tie_word_embeddings=tied)
    prompts, ends = PROMPTS * 3, (EOS, 4)
    wanted = by_forward_passes(model, prompts, (6,), ends=ends, temperature=0.9)
    assert len(set(map(len, wanted))) > 3, "completions end at different times"
    for rows in (1, 4, 64):
        ours = sampler(model, rows=rows, eos=ends, temperature=0.9)
        assert ours.sample(prompts, seed=(6,)).tokens == wanted
    alone = sampler(model, rows=4, eos=ends, temperature=0.9).sample(prompts[:1], seed=(6,))
    assert alone.tokens == wanted[:1]


def test_slots_are_handed_on(monkeypatch):
    monkeypatch.setattr(sampler_module, "LOOK_EVERY", 2)
    ours = sampler(llama(), rows=4, eos=[EOS, 4], max_new_tokens=40)
    steps = counted_steps(ours, monkeypatch)
    lengths = list(map(len, ours.sample(PROMPTS * 8, seed=(2,)).tokens))
    assert sum(steps) <= sum(lengths), "an ended row runs on for a step at most"
    by_chunks = sum(max(lengths[first : first + 4]) for first in range(0, 40, 4))
    assert len(steps) < 0.7 * by_chunks, "chunks wait for their longest"


def test_prompts_beyond_what_one_pass_reads(monkeypatch):
    model = llama()
    whole = sampler(model).sample(PROMPTS, seed=(1,))
    monkeypatch.setattr(sampler_module, "READ_TOKENS", 6)
    assert sampler(model).sample(PROMPTS, seed=(1,)).tokens == whole.tokens


def test_limits_of_each_prompt():
    model = llama()
    ours = sampler(model, rows=2, eos=[])
    whole = ours.sample(PROMPTS, seed=(1,)).tokens
    limits = [3, 12, 1, 7, 2]
    cut = ours.sample(PROMPTS, seed=(1,), limits=limits).tokens
    assert cut == [tokens[:limit] for tokens, limit in zip(whole, limits, strict=True)]
    with pytest.raises(ACPOError, match="max_new_tokens=12"):
        ours.sample(PROMPTS, seed=(1,), limits=[13] * 5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_weights_that_are_not_finite_raise_and_leave_nothing_behind(temperature):
    model = llama()
    ours = sampler(model, rows=2, temperature=temperature)
    long = [[5] * 20, [6] * 20]
    wanted = ours.sample(PROMPTS, seed=(0,))
    ours.sample(long, seed=(1,))
    weight = model.model.layers[1].self_attn.k_proj.weight
    kept = weight.data.clone()
    weight.data[0, 0] = torch.nan
    with pytest.raises(ACPOError, match=r"prompts\[0\].*after 0 new tokens are not finite"):
        ours.sample(long, seed=(2,))
    weight.data.copy_(kept)
    after = ours.sample(PROMPTS, seed=(0,))
    assert after.tokens == wanted.tokens and after.logp == wanted.logp


def test_a_row_that_turns_nan_on_the_way_is_told_by_its_place():
    model = llama()
    with torch.no_grad():
        model.model.embed_tokens.weight[8] = torch.nan
    clean = [[5, 6, 7]] * 3
    ours = sampler(model, rows=1, eos=[], max_new_tokens=30)
    with pytest.raises(ACPOError, match=r"prompts\[1\].*after 0 new"):
        ours.sample([[5, 6, 7], [5, 8, 7]], seed=(3,), limits=[1, 1])
    with pytest.raises(ACPOError, match=r"prompts\[\d\].*after [1-9]\d* new tokens"):
        ours.sample(clean, seed=(3,))


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


def chance(counts, expected):
    """Of counts this far from the expected ones or further, by Pearson's chi-square."""
    distance = ((counts - expected) ** 2 / expected).sum().double()
    return float(
        torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2).double(), distance / 2)
    )


def test_draws_follow_the_distribution():
    logits = torch.tensor([0.0, 2.0, -torch.inf, 1.0, -1.0])
    uniforms = uniform_table(1, 20_000, (4,))[0]
    tokens, logp = draw(logits.expand(20_000, 5), uniforms, Projection())
    p = torch.softmax(logits, -1)
    counts = torch.bincount(tokens, minlength=5)
    assert counts[2] == 0
    assert (counts / 20_000 - p).abs().max() < 0.01
    possible = p > 0
    assert chance(counts[possible], 20_000 * p[possible].double()) > 0.001
    torch.testing.assert_close(logp.exp(), p[tokens])
    edges = torch.tensor([0.0, 1.0], dtype=torch.float64)
    only = torch.tensor([[-torch.inf, 0.0, -torch.inf]] * 2)
    assert draw(only, edges, Projection())[0].tolist() == [1, 1]


def test_completions_follow_the_distribution_of_the_model():
    model = llama()
    prompt, count = [5, 6, 7], 4000
    ours = sampler(model, rows=500, max_new_tokens=2, eos=[])
    tokens = torch.tensor(ours.sample([prompt] * count, seed=(9,)).tokens)
    with torch.no_grad():
        first = torch.softmax(model(torch.tensor([prompt])).logits[0, -1].double(), -1)
        branches = torch.tensor([[*prompt, token] for token in range(23)])
        second = torch.softmax(model(branches).logits[:, -1].double(), -1)
    expected = count * (first[:, None] * second).flatten()
    found = torch.bincount(tokens[:, 0] * 23 + tokens[:, 1], minlength=23 * 23).double()
    often = expected >= 5  # the rest together, as the test wants it
    counts, means = (torch.cat([x[often], x[~often].sum()[None]]) for x in (found, expected))
    assert chance(counts, means) > 0.001


def test_what_is_not_finite_draws_nothing():
    raw = torch.zeros(5, 4)
    raw[0, 3], raw[1], raw[2], raw[3, 1] = torch.nan, torch.nan, -torch.inf, torch.inf
    half = torch.full((5,), 0.5, dtype=torch.float64)
    for tokens, _ in (draw(raw, half, Projection()), greedy(raw, Projection())):
        assert (tokens == NOTHING).tolist() == [True, True, True, True, False]


def test_refusals():
    with pytest.raises(ACPOError, match="prompts"):
        sampler(llama()).sample([[3], []], seed=(0,))
    with pytest.raises(ACPOError, match="rows=0"):
        sampler(llama(), rows=0)
    windowed = llama()
    windowed.config.layer_types = ["sliding_attention"] * 3
    with pytest.raises(ACPOError, match="sliding_attention"):
        sampler(windowed)
    stretched = llama()
    stretched.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    with pytest.raises(ACPOError, match="rope_type='dynamic'"):
        sampler(stretched)


class Replayed:
    """What a captured graph does, without CUDA: the same step, at the size it was captured at."""

    def __init__(self, ours, cache, size):
        self.step = lambda: ours._step(cache, size)
        self.replays = 0

    def replay(self):
        self.replays += 1
        self.step()


def test_graphs_fill_batches_up_and_outlive_calls(monkeypatch):
    model = llama()
    plain = sampler(model, rows=64, max_new_tokens=60)
    graphed = sampler(model, rows=20, max_new_tokens=60, graphs=True)
    monkeypatch.setattr(graphed, "_capture", lambda cache, size: Replayed(graphed, cache, size))
    assert graphed.sizes == [8, 12, 16, 20]
    for seed in (1, 2):
        ours = graphed.sample(PROMPTS * 6, seed=(seed,))
        assert ours.tokens == plain.sample(PROMPTS * 6, seed=(seed,)).tokens
        if seed == 1:
            first = dict(graphed._captured)
    assert {8, 20} <= set(first) <= set(graphed.sizes), "one per size"
    assert all(graphed._captured[size] is graph for size, graph in first.items())
    assert sum(graph.replays for graph in first.values()) > 100
    graphed.sample([[5] * 200], seed=(3,))
    kept = graphed._captured.values()
    assert not set(kept) & set(first.values()), "a longer cache is another cache"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compiled", [False, True])
def test_graphs_on_a_gpu_say_what_plain_steps_say(compiled):
    model = llama().cuda()
    plain = sampler(model, rows=8, max_new_tokens=100, graphs=False, compiled=False)
    graphed = sampler(model, rows=8, max_new_tokens=100, compiled=compiled)
    for seed in (1, 2):
        ours = graphed.sample(PROMPTS, seed=(seed,))
        theirs = plain.sample(PROMPTS, seed=(seed,))
        assert ours.tokens == theirs.tokens
        assert graphed.compiled is compiled and graphed._captured
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.05)


@pytest.mark.parametrize("name", MODELS)
def test_all_layers_and_batches_share_one_compilation(name, monkeypatch, compiled_by):
    graphs = []

    def backend(graph, inputs, **options):
        graphs.append(graph)
        return graph.forward

    compiled_by(backend)
    model = MODELS[name]()
    ours = sampler(model, rows=5, eos=[EOS, 4], compiled=True)
    plain = sampler(model, rows=5, eos=[EOS, 4])
    monkeypatch.setattr(ours, "sizes", [4, 5])  # not 1, nor as many as there are heads
    monkeypatch.setattr(ours, "graphs", True)
    monkeypatch.setattr(ours, "_capture", lambda cache, size: Replayed(ours, cache, size))
    for seed in (1, 2):
        tokens = ours.sample(PROMPTS * 3, seed=(seed,)).tokens
        assert tokens == plain.sample(PROMPTS * 3, seed=(seed,)).tokens
        assert ours.compiled and len(graphs) == 4, "up to attention and behind it, layer and block"


def test_layers_that_do_not_compile_run_as_they_are(compiled_by):
    def backend(graph, inputs, **options):
        raise RuntimeError("no compiler here")

    compiled_by(backend)
    model = llama()
    ours = sampler(model, compiled=True)
    with pytest.warns(RuntimeWarning, match="no compiler here"):
        tokens = ours.sample(PROMPTS, seed=(1,)).tokens
    assert tokens == sampler(model).sample(PROMPTS, seed=(1,)).tokens
    assert not ours.compiled and ours.sample(PROMPTS, seed=(1,)).tokens == tokens


def test_a_model_with_a_state_of_its_own_is_refused():
    model = llama()
    layer = model.model.layers[1]

    class Remembering(type(layer)):
        def forward(self, hidden_states, *args, **kwargs):
            said = super().forward(hidden_states, *args, **kwargs)
            return said + hidden_states.cumsum(1)

    layer.__class__ = Remembering
    with pytest.raises(ACPOError, match=r"LlamaForCausalLM .* are \d+% from its own"):
        sampler(model).sample(PROMPTS, seed=(0,))


def test_attention_that_does_not_go_through_the_cache_is_refused():
    config = GPT2Config(vocab_size=23, n_embd=32, n_layer=1, n_head=2, n_positions=64)
    with pytest.raises(ACPOError, match=r"of GPT2LMHeadModel does not go.*sampler='generate'"):
        sampler(GPT2LMHeadModel(config)).sample(PROMPTS, seed=(0,))


@pytest.mark.filterwarnings("error:the sampler's layers do not compile")
@pytest.mark.parametrize("own", ["sink", "mask"])
def test_terms_that_a_layer_adds_to_its_scores_are_refused(own):
    """Both are too small to tell on a few tokens; on sixteen they move log p by 1."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 23}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
    if own == "sink":
        sizes |= {"layer_types": ["full_attention"] * 2, "head_dim": 8, "num_local_experts": 2}
        rope = {"rope_type": "default", "rope_theta": 1e4}
        model = GptOssForCausalLM(
            GptOssConfig(**sizes, num_experts_per_tok=1, rope_parameters=rope, pad_token_id=PAD)
        )
    else:
        model = DogeForCausalLM(DogeConfig(**sizes, pad_token_id=PAD))
    with torch.no_grad():
        for layer in model.model.layers:
            (layer.self_attn.sinks.fill_(-3) if own == "sink" else layer.self_attn.A.fill_(0.1))
    with pytest.raises(ACPOError, match=r"Attention adds a mask or a sink .*sampler='generate'"):
        sampler(model.eval(), compiled=True).sample(PROMPTS, seed=(0,))


@pytest.mark.parametrize("limits", [[4], [4, 4, 4, 4], []])
def test_limits_are_one_per_prompt(limits):
    with pytest.raises(ACPOError, match=f"limits: {len(limits)} of them for 3 prompts"):
        sampler(llama()).sample([[5], [6], [7]], seed=(1,), limits=limits)
