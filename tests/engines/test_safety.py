"""What was built decides, not what was asked for: logits, packs, launchers, optimizers, images."""

import math
import types

import pytest
import torch
import transformers as T
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from trl import GRPOConfig, GRPOTrainer

from acpo import ACPOTrainer
from acpo.engines.attention import PACKED
from acpo.engines.ranks import Ranks
from acpo.engines.trl import packing, safety
from acpo.engines.trl.forward import Attention, add_policy_forward, choose_attention
from acpo.engines.trl.update import PackedUpdate, UpdateSettings
from acpo.errors import ACPOError
from acpo.objectives import get_method
from engines.tiny import (
    WORDS,
    build,
    recorded,
    relative,
    tiny_model,
    tiny_tokenizer,
)

CPU = torch.device("cpu")
SMALL = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}


def capped(name):
    """Models that squash their logits: one by a name we know, one by another."""
    torch.manual_seed(0)
    if name == "gemma2":
        shape = {**GROUPED, "head_dim": 8, "final_logit_softcapping": 3.0}
        model = T.Gemma2ForCausalLM(T.Gemma2Config(**shape))
    else:
        shape = {**SMALL, "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 16}
        blocks = ["recurrent", "recurrent", "attention"]
        config = T.RecurrentGemmaConfig(**shape, logits_soft_cap=3.0, block_types=blocks)
        model = T.RecurrentGemmaForCausalLM(config)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(30)
    return model


def test_logits_that_are_not_the_heads_are_refused_with_the_figure(monkeypatch):
    safety.probe_head(capped("gemma2"))
    safety.probe_head(capped("recurrent_gemma"))
    safety.probe_head(tiny_model(dtype=torch.bfloat16))
    monkeypatch.setattr("acpo.head.lookup.SOFT_CAPS", ())
    with pytest.raises(ACPOError, match=r"RecurrentGemma.* differ by \d\.\d \(relative"):
        safety.probe_head(capped("recurrent_gemma"))


def test_a_layer_before_the_head_is_refused(tmp_path):
    model = T.BertLMHeadModel(T.BertConfig(**SMALL, is_decoder=True))
    with pytest.raises(ACPOError, match="BertLMHeadModel are not its output head"):
        build(tmp_path, model)


def hybrid(name):
    torch.manual_seed(0)
    if name == "lfm2":
        kinds = {"layer_types": ["conv", "full_attention"], "full_attn_idxs": [1]}
        model = T.Lfm2ForCausalLM(T.Lfm2Config(**GROUPED, **kinds))
    else:
        mamba = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}
        config = T.FalconH1Config(**GROUPED, **mamba, mamba_d_ssm=64)
        model = T.FalconH1ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return model


def leak(model):
    add_policy_forward(model)
    update = PackedUpdate(
        UpdateSettings(get_method("acpo"), temperature=1.0, budget=64),
        ranks=Ranks(CPU, together=False),
        attention=Attention("packed", "test", PACKED),
    )
    return safety.second_sequence(update, model, model)[1]


def test_state_that_runs_from_sequence_to_sequence_is_seen():
    assert leak(tiny_model()) < 1e-5
    assert leak(hybrid("lfm2")) > safety.LEAK


def test_hybrid_models_are_not_packed_because_flash_attention_is_on(tmp_path):
    model = hybrid("lfm2")
    model.config._attn_implementation = "flash_attention_2"
    choice = choose_attention(model, device=torch.device("cuda"), half_precision=True)
    assert choice.layout == "padded" and "conv" in choice.reason
    gemma = capped("gemma2")  # sliding windows: flash attention knows those itself
    gemma.config._attn_implementation = "flash_attention_2"
    choice = choose_attention(gemma, device=torch.device("cuda"), half_precision=True)
    assert choice.layout == "packed"


def test_adapters_that_look_for_their_invocation_in_a_row_are_padded():
    lora = LoraConfig(
        r=4, target_modules=["q_proj"], task_type="CAUSAL_LM", alora_invocation_tokens=[5]
    )
    policy = get_peft_model(tiny_model(), lora).get_base_model()
    choice = choose_attention(policy, device=torch.device("cuda"), half_precision=True)
    assert choice.layout == "padded" and "aLoRA" in choice.reason
    plain = get_peft_model(tiny_model(), LoraConfig(r=4, target_modules=["q_proj"]))
    choice = choose_attention(
        plain.get_base_model(), device=torch.device("cpu"), half_precision=True, wanted="packed"
    )
    assert choice.layout == "packed"


def unlike_others(name):
    """Models whose layers have no heads, or each a width of its own."""
    torch.manual_seed(0)
    if name == "mamba":
        headless = {k: v for k, v in SMALL.items() if k != "num_attention_heads"}
        return T.MambaForCausalLM(T.MambaConfig(**headless, state_size=4))
    kinds = {"layer_types": ["sliding_attention", "full_attention"]}
    extra = {"vocab_size_per_layer_input": len(WORDS), "hidden_size_per_layer_input": 8}
    widths = {"head_dim": 16, "global_head_dim": 32}
    return T.Gemma4ForCausalLM(T.Gemma4TextConfig(**GROUPED, **kinds, **extra, **widths))


@pytest.mark.parametrize("name", ["mamba", "gemma4"])
def test_models_without_one_size_of_heads_have_the_gradient_of_stock_trl(tmp_path, name):
    trainer, ours = recorded(
        tmp_path / "ours", unlike_others(name), method="grpo", gradient_checkpointing=None
    )
    stock = {"kind": (GRPOTrainer, GRPOConfig), "loss_type": "grpo"}
    _, theirs = recorded(tmp_path / "stock", unlike_others(name), **stock)
    assert trainer.packed.attention.layout == "padded"
    assert theirs[0].norm() > 0 and relative(ours[0], theirs[0]) < 1e-4


def test_sizes_that_differ_by_layer_are_taken_at_their_largest():
    layers = {"intermediate_size": [64, 32], "layer_types": ["full_attention"] * 2}
    assert packing.widest(T.Gemma3nTextConfig(**{**GROUPED, **layers}), "intermediate_size") == 64
    assert packing.widest(unlike_others("gemma4").config, "head_dim") == 32
    assert packing.widest(unlike_others("mamba").config, "num_attention_heads") == 0


def test_the_states_of_a_state_space_layer_are_counted():
    """Without its kernels a layer keeps them for every token: most of what it keeps."""
    model, kept = unlike_others("mamba").train(), {}

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = x  # alive, so that no address is used twice
        return x

    ids = torch.randint(2, len(WORDS), (2, 64))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        model.backbone(ids)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    held = sum(x.untyped_storage().nbytes() for at, x in kept.items() if at not in weights)
    counted = packing.activation_bytes(model.config, itemsize=4, checkpointing=False)
    assert 0.8 < held / ids.numel() / counted < 1.2


def test_a_leak_nobody_declared_is_found_by_the_probe(tmp_path):
    model = tiny_model()
    layer = model.model.layers[0]
    original = layer.forward

    def leaky(hidden, *args, **kwargs):
        return original(hidden.cumsum(1), *args, **kwargs)

    layer.forward = leaky
    with pytest.raises(ACPOError, match="see each other in a pack: a log-probability moved by"):
        build(tmp_path, model, update_layout="packed")


def test_packed_is_refused_where_it_cannot_be_had(tmp_path):
    model = tiny_model()
    model.config.attention_dropout = 0.1
    with pytest.raises(ACPOError, match=r"update_layout='packed' is not possible: .*dropout"):
        recorded(tmp_path, model, update_layout="packed")


def test_all_processes_recompute_activations_or_none(tmp_path):
    trainer, _ = recorded(tmp_path, max_steps=1)
    for another_is_short in (True, False):
        trainer.args.gradient_checkpointing = None
        trainer.ranks = types.SimpleNamespace(
            most=lambda own, other=another_is_short: max(own, other)
        )
        trainer._decide_checkpointing()
        assert trainer.args.gradient_checkpointing is another_is_short


class Guessing:
    """An environment that owns its prompts: the data hold TRL's empty placeholders."""

    def reset(self, **_):
        return "w3 w4 w5"

    def get_reward(self):
        return 1.0

    def guess(self, word: str) -> str:
        """Guess.

        Args:
            word: a word.
        """
        return "w7"


@pytest.fixture
def tools_for_all(monkeypatch):
    """TRL takes the tiny model's chat template for one that knows tools."""
    import trl.trainer.grpo_trainer as stock

    monkeypatch.setattr(stock, "add_response_schema", lambda processor: processor)
    monkeypatch.setattr(stock, "is_chat_template_prefix_preserving", lambda processor: True)
    if hasattr(stock, "supports_tool_calling"):
        monkeypatch.setattr(stock, "supports_tool_calling", lambda processor: True)


def test_environments_may_fill_prompts_in_later(tmp_path, tools_for_all):
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": ""}]] * 16})
    settings = {"data": data, "tokenizer": tiny_tokenizer(chat=True)}
    build(tmp_path, environment_factory=Guessing, **settings)
    with pytest.raises(ACPOError, match="prompt 0 of the training data is empty"):
        build(tmp_path, **settings)


def test_packs_are_sized_for_the_shard_a_gpu_will_hold(monkeypatch):
    """An 8B model on eight 80 GB cards has room for packs, though one card could not hold it."""
    shape = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    config = T.Qwen3Config(vocab_size=151936, **shape, **heads)
    with torch.device("meta"):
        model = T.Qwen3ForCausalLM(config)
    card = types.SimpleNamespace(total_memory=int(80e9))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (int(79e9), int(80e9)))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda *_: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda *_: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: card)
    device = torch.device("cuda", 0)
    per_token = packing.activation_bytes(config, itemsize=2, checkpointing=True)

    def budget(shards, **more):
        free = packing.free_bytes(
            model, device, logits_bytes=None, optimizer_started=False, shards=shards, **more
        )
        return packing.pack_budget(free, per_token, device)

    assert budget(1) == 256
    assert budget(8) > 16_384
    # Without exchanges FSDP2 keeps every gradient whole until the last pack.
    assert budget(8, whole_gradients=True) < budget(8) / 1.5


def test_the_budget_is_measured_on_the_model_as_wrapped(tmp_path, monkeypatch):
    seen = []
    measure = ACPOTrainer._measure_budget
    monkeypatch.setattr(
        ACPOTrainer,
        "_measure_budget",
        lambda self: (seen.append(self.state.global_step), measure(self))[1],
    )
    trainer, _ = recorded(tmp_path, max_steps=2)
    assert seen == [0], "once, at the first pass of the first step"
    assert trainer.packed.settings.budget > 256


def test_the_probe_asks_no_kernel_of_the_models_own_attention(monkeypatch):
    """Flash kernels refuse a CPU and float32, where weights may be before they are placed."""
    from transformers.modeling_utils import AttentionInterface

    def kernel(*args, **kwargs):
        raise RuntimeError("not on this device")

    AttentionInterface.register("only_on_a_gpu", kernel)
    model = tiny_model()
    model.config._attn_implementation = "only_on_a_gpu"
    safety.probe_head(model)
    assert model.config._attn_implementation == "only_on_a_gpu"


def test_a_mask_of_the_models_own_is_not_dropped(tmp_path):
    model = tiny_model()
    attention = model.model.layers[0].self_attn
    original = attention.forward

    def masked(hidden_states, position_embeddings, attention_mask=None, **kwargs):
        own = torch.zeros(1, 1, hidden_states.shape[1], hidden_states.shape[1])
        return original(hidden_states, position_embeddings, own, **kwargs)

    attention.forward = masked
    with pytest.raises(ACPOError, match="adds a mask or a sink of its own"):
        recorded(tmp_path, model, update_layout="packed")


def test_sharded_weights_are_probed_once_they_are_in_place(tmp_path, monkeypatch):
    monkeypatch.setattr(safety, "packing_fault", lambda *_: "sequences see each other")
    trainer = build(tmp_path)
    trainer._unprobed = True
    with pytest.raises(ACPOError, match="see each other; set update_layout='padded'"):
        trainer.train()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (math.nan, "'get_reward' returned nan for completion 0"),
        ("good", "'get_reward' returned 'good' for completion 0"),
        (None, "'get_reward' raised KeyError: 'score', at .*; return None"),
    ],
)
def test_rewards_of_an_environment_are_checked_as_others(tmp_path, tools_for_all, said, words):
    class Judging(Guessing):
        def get_reward(self):
            return {}["score"] if said is None else said

    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": "w1"}]] * 16})
    settings = {"data": data, "tokenizer": tiny_tokenizer(chat=True), "rewards": None}
    trainer = build(tmp_path, environment_factory=Judging, **settings)
    (reward,) = trainer.reward_funcs
    with pytest.raises(ACPOError, match=words):
        reward(environments=[Judging()], prompts=["w1"], completions=["w2"], completion_ids=[[4]])
