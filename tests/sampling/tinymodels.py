"""Models of a few thousand parameters, prompts for them, and what they say to those."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from acpo.sampling import StaticSampler
from acpo.sampling.draw import uniform_table
from tasks.tiny import tiny_model

PAD, EOS = 0, 1
PROMPTS = [[5, 6, 7], [3], [9, 10, 11, 12, 13, 2, 4, 8, 3, 3, 4], [3], [5, 6, 7]]


def llama(seed=0, **options):
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
        **options,
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


@torch.no_grad()
def by_forward_passes(model, prompts, seed, new_tokens=12, ends=(EOS,), temperature=1.0):
    """A plain loop, one sequence after another, without a cache."""
    completions = []
    for prompt, uniforms in zip(
        prompts, uniform_table(len(prompts), new_tokens, seed).tolist(), strict=True
    ):
        ids = list(prompt)
        for uniform in uniforms:
            logits = model(torch.tensor([ids])).logits[0, -1].double() / temperature
            cumulative = torch.softmax(logits, -1).cumsum(-1)
            ids.append(int((cumulative <= uniform * cumulative[-1]).sum()))
            if ids[-1] in ends:
                break
        completions.append(ids[len(prompt) :])
    return completions
