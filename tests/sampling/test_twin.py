"""The weights the sampler reads: the trained ones, to the rounding that training rounds them."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from acpo.errors import ACPOError
from acpo.sampling.twin import Twin
from sampling.tinymodels import EOS, PROMPTS, llama, sampler


@torch.no_grad()
def logp_under_autocast(model, prompt, tokens, *, cached):
    """In one pass as training makes it, or token by token as `generate` does."""
    head = model.get_output_embeddings().weight.bfloat16().float()
    steps = (
        [[*prompt], *([token] for token in tokens[:-1])] if cached else [[*prompt, *tokens[:-1]]]
    )
    states, past = [], None
    backbone = model.get_base_model().model if hasattr(model, "peft_config") else model.model
    for ids in steps:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = backbone(torch.tensor([ids]), past_key_values=past, use_cache=cached)
        states.append(out.last_hidden_state[0])
        past = out.past_key_values
    logits = torch.cat(states)[len(prompt) - 1 :].bfloat16().float() @ head.t()
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]


def distance(model, samples, prompts):
    """Mean |Δ log p| of samples to training's pass."""
    apart = [
        torch.as_tensor(logp) - logp_under_autocast(model, prompt, tokens, cached=False)
        for prompt, tokens, logp in zip(prompts, *samples, strict=True)
    ]
    return float(torch.cat(apart).abs().mean())


def test_bfloat16_copies_are_as_near_to_training_as_generate_under_autocast():
    model = llama()
    ours = sampler(model, autocast=torch.bfloat16)
    for _ in range(2):
        samples = ours.sample(PROMPTS * 4, seed=(1,))
        cached = [
            logp_under_autocast(model, prompt, tokens, cached=True)
            for prompt, tokens in zip(PROMPTS * 4, samples.tokens, strict=True)
        ]
        mine = distance(model, samples, PROMPTS * 4)
        theirs = distance(model, samples._replace(logp=cached), PROMPTS * 4)
        assert 0 < theirs < 0.03 and mine < 1.3 * theirs, (mine, theirs)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))


def test_the_backbone_is_the_trained_one_rounding_by_rounding():
    model = llama()
    twin = Twin(model, torch.bfloat16)
    twin.refresh()
    twin.backbone.config._attn_implementation = "sdpa"
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(twin.backbone(ids).last_hidden_state, model.model(ids).last_hidden_state)


def test_copies_stay_where_they_are_and_nothing_else_is_copied():
    model = llama()
    twin = Twin(model, torch.bfloat16)
    attention = twin.backbone.layers[0].self_attn
    before = attention.q_proj.weight.data_ptr()
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.fill_(3.0)
    twin.refresh()
    assert attention.q_proj.weight.data_ptr() == before
    assert attention.q_proj.weight.dtype == torch.bfloat16 and (attention.q_proj.weight == 3).all()
    assert twin.backbone.norm.weight is model.model.norm.weight
    assert twin.backbone.embed_tokens.weight is model.model.embed_tokens.weight
    assert model.model.layers[0].self_attn.q_proj.weight.dtype == torch.float32
    same = Twin(model, None)
    ours, theirs = (dict(x.named_parameters()) for x in (same.backbone, model.model))
    assert ours.keys() == theirs.keys() and all(ours[name] is theirs[name] for name in ours)


def test_the_trained_model_is_left_as_it_is():
    model = llama()
    model.train()
    seen = []
    model.model.layers[0].register_forward_hook(lambda *_: seen.append(1))
    model.model.gradient_checkpointing = True
    ours = sampler(model)
    ours.sample(PROMPTS, seed=(0,))
    assert seen.pop() and not seen, "its own pass, to compare with"
    ours.sample(PROMPTS, seed=(0,))
    assert model.training and all(module.training for module in model.modules())
    assert model.config._attn_implementation == "sdpa"
    assert not seen, "hooks of training are not those of sampling"


def test_parameters_that_move_are_found():
    model = llama()
    ours = sampler(model, temperature=0.0)
    ours.sample(PROMPTS, seed=(0,))
    model.model.layers[0].mlp.up_proj.weight.data = torch.randn(64, 48)
    fresh = sampler(model, temperature=0.0).sample(PROMPTS, seed=(0,))
    assert ours.sample(PROMPTS, seed=(0,)).tokens == fresh.tokens


def adapted(**options):
    torch.manual_seed(0)
    given = {"target_modules": ["q_proj", "down_proj"], "init_lora_weights": False, **options}
    config = LoraConfig(r=4, **given)
    return get_peft_model(llama(), config).eval()


def test_adapters_are_merged_and_followed():
    model = adapted()
    ours = sampler(model.get_base_model(), temperature=0.0)
    for _ in range(2):
        found = ours.sample(PROMPTS, seed=(0,)).tokens
        for prompt, tokens in zip(PROMPTS, found, strict=True):
            theirs = model.generate(
                input_ids=torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0
            )
            assert tokens == theirs[0, len(prompt) :].tolist()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.neg_()
    assert found != ours.sample(PROMPTS, seed=(0,)).tokens
    half = sampler(model.get_base_model(), autocast=torch.bfloat16)
    samples = half.sample(PROMPTS * 4, seed=(0,))
    mine = distance(model, samples, PROMPTS * 4)
    # The sum of weight and adapter is rounded, not each: no further off than rounding itself.
    unrounded = sampler(model.get_base_model()).sample(PROMPTS * 4, seed=(0,))
    same = [i for i, tokens in enumerate(samples.tokens) if tokens == unrounded.tokens[i]]
    assert len(same) > 4
    exact = samples._replace(
        tokens=[unrounded.tokens[i] for i in same], logp=[unrounded.logp[i] for i in same]
    )
    rounding = distance(model, exact, [(PROMPTS * 4)[i] for i in same])
    assert mine < 2 * rounding, (mine, rounding)


def test_adapters_of_embeddings_are_merged():
    model = adapted(target_modules=["q_proj", "embed_tokens"])
    samples = sampler(model.get_base_model()).sample(PROMPTS, seed=(0,))
    for prompt, tokens, logp in zip(PROMPTS, *samples, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0]
        wanted = logits.log_softmax(-1)[len(prompt) - 1 : -1]
        wanted = wanted.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        torch.testing.assert_close(torch.as_tensor(logp), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("option", ["use_dora", "lora_bias"])
def test_adapters_that_do_not_merge_are_refused(option):
    model = adapted(**{option: True}).get_base_model()
    with pytest.raises(ACPOError, match="plain LoRA or sampler='generate'"):
        sampler(model, eos=[EOS]).sample(PROMPTS, seed=(0,))


def test_what_training_did_to_its_layers_stays_there():
    """Layers compiled for the update, or with a forward of their own, are not the twin's."""
    model = llama()
    wanted = sampler(model, temperature=0.0).sample(PROMPTS, seed=(0,)).tokens
    first, second, third = model.model.layers

    def never(*args, **kwargs):
        raise AssertionError("the trained layer was called")

    ours = sampler(model, temperature=0.0)
    ours._compare = lambda cache: None  # which calls it
    first._compiled_call_impl = never
    second.forward = never
    third.mlp.register_forward_pre_hook(never)
    assert ours.sample(PROMPTS, seed=(0,)).tokens == wanted
