"""How sequences are split into packs changes nothing but the time."""

import pytest
import torch
from peft import LoraConfig
from transformers import MistralConfig, MistralForCausalLM

from acpo.engines.ranks import Ranks
from acpo.engines.trl.forward import choose_attention
from acpo.engines.trl.packing import (
    find_rows,
    first_fit_decreasing,
    group_by_length,
    lay_out,
)
from acpo.errors import ACPOError
from acpo.objectives import METHODS
from engines.tiny import WORDS, build, prompts, recorded, relative, tiny_model
from engines.worker import fixed_rollout

CPU = torch.device("cpu")


def test_first_fit_decreasing_by_hand():
    assert first_fit_decreasing([5, 9, 3, 4, 1], budget=10) == [[1, 4], [0, 3], [2]]
    assert first_fit_decreasing([12, 2], budget=10) == [[0], [1]]
    assert first_fit_decreasing([], budget=10) == []


def test_groups_of_similar_length_by_hand():
    assert group_by_length([2, 5, 4, 1], budget=10) == [[1, 2], [0, 3]]
    assert group_by_length([30], budget=10) == [[0]]


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_every_target_is_predicted_by_the_token_before_it(layout):
    generator = torch.Generator().manual_seed(0)
    rows, width, first = 7, 12, 5
    start = torch.randint(0, first, (rows, 1), generator=generator)
    end = torch.randint(first + 1, width + 1, (rows, 1), generator=generator)
    column = torch.arange(width)
    attended = (column >= start) & (column < end)
    targets = attended & (column >= first) & (torch.rand(rows, width, generator=generator) < 0.7)
    targets[3] = False
    ids = torch.arange(rows * width).view(rows, width)
    found = find_rows(attended=attended, targets=targets)
    chosen = [i for i in range(rows) if targets[i].any()]
    seen = torch.zeros_like(targets)
    for pack in lay_out(found, chosen, width=width, budget=15, layout=layout):
        read = ids.flatten()[pack.source]
        assert torch.equal(read[pack.states] + 1, ids[pack.rows, pack.columns])
        starts = [read[pack.positions == 0]] if layout == "packed" else []
        assert all(set(s.tolist()) <= set((ids[:, 0] + start[:, 0]).tolist()) for s in starts)
        assert int(pack.valid.sum()) == pack.tokens
        seen[pack.rows, pack.columns] = True
    assert torch.equal(seen, targets)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_steps_and_packs_change_nothing(tmp_path, method):
    settings = {
        "method": method,
        "max_steps": 2,
        "steps_per_generation": 2,
        "per_device_train_batch_size": 16,
        "rollout_func": fixed_rollout,
    }
    layouts = {"padded": 4096, "packed": 20}
    (_, whole), (trainer, packed) = (
        recorded(
            tmp_path,
            tiny_model(layers=1),
            update_layout=layout,
            max_tokens_per_pack=tokens,
            **settings,
        )
        for layout, tokens in layouts.items()
    )
    assert trainer.packed.attention.layout == "packed"
    assert trainer.state.log_history[0]["update/packs"] > 2
    # Adam magnifies rounding of the first step before the second.
    for a, b, tolerance in zip(packed, whole, (1e-5, 1e-4), strict=True):
        assert b.norm() > 1e-5
        assert relative(a, b) < tolerance
    before = tiny_model(layers=1).state_dict()
    after = trainer.model.state_dict()
    assert any(not torch.equal(after[name], before[name]) for name in before)


def test_rows_without_advantage_never_reach_the_backbone(tmp_path):
    def only_first(prompts, completion_ids, **_):
        pairs = zip(prompts, completion_ids, strict=True)
        return [float(sum(ids)) if prompt == prompts[0] else 1.0 for prompt, ids in pairs]

    def constant(completions, **_):
        return [1.0] * len(completions)

    trainer, _ = recorded(tmp_path, rewards=only_first, max_tokens_per_pack=10_000)
    assert trainer.state.log_history[0]["update/rows_skipped"] == 0.5
    silent, gradients = recorded(tmp_path, rewards=constant)
    assert silent.state.log_history[0]["update/rows_skipped"] == 1.0
    assert silent.state.log_history[0]["update/tokens_skipped"] == 1.0
    assert gradients[0].abs().max() == 0.0


@pytest.mark.parametrize("judged", [True, False])
def test_numbers_of_rows_without_a_verdict_skip_no_step(tmp_path, judged):
    def last_unjudged(completion_ids, **_):
        return [None if index % 4 == 3 else float(sum(x)) for index, x in enumerate(completion_ids)]

    trainer = build(tmp_path, rewards=last_unjudged, num_iterations=2, max_steps=2)
    make = trainer.rollouts.make

    def poisoned(*arguments):
        rollout = make(*arguments)
        rollout["old_per_token_logps"][rollout["judged"].bool() == judged] = torch.nan
        return rollout

    trainer.rollouts.make = poisoned
    trainer.train()
    assert trainer.guard.total == (2 if judged else 0)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tied_and_untied_heads_in_both_precisions(tmp_path, tied, dtype):
    model = tiny_model(tied=tied, dtype=dtype)
    head = model.get_output_embeddings().weight.detach().clone()
    trainer, gradients = recorded(tmp_path, model, max_steps=2)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert torch.isfinite(gradients[0]).all() and gradients[0].norm() > 0
    assert not torch.equal(model.get_output_embeddings().weight, head)
    assert trainer.state.log_history[0]["nonfinite/steps"] == 0


def test_autocast_trains_float32_weights(tmp_path):
    settings = {"update_layout": "packed", "rollout_func": fixed_rollout}
    trainer, gradients = recorded(tmp_path, bf16=True, **settings)
    _, exact = recorded(tmp_path, **settings)
    assert trainer.model.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(gradients[0], exact[0], dim=0) > 0.98


@pytest.mark.parametrize("checkpointing", [False, True])
def test_lora_trains_the_adapter_alone(tmp_path, checkpointing):
    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    settings = {"max_steps": 3, "num_iterations": 2, "beta": 0.1}
    trainer, _ = recorded(
        tmp_path, peft_config=adapter, gradient_checkpointing=checkpointing, **settings
    )
    fresh = tiny_model().state_dict()
    moved = {n for n, p in trainer.model.named_parameters() if p.requires_grad and "lora_B" in n}
    state = trainer.model.state_dict()
    assert moved and all(state[name].abs().max() > 0 for name in moved)
    base = trainer.model.get_base_model().model.embed_tokens.weight
    assert torch.equal(base, fresh["model.embed_tokens.weight"])
    assert trainer.state.log_history[-2]["kl"] > 0


@pytest.mark.parametrize("method", ["acpo", "acpo_balanced", "kl_cov"])
def test_on_policy_ratios_are_one_whatever_is_dropped_out(tmp_path, method):
    """Rows that need statistics first have them from another pass, with another mask."""
    config = LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.3, init_lora_weights=False
    )
    trainer, _ = recorded(tmp_path, method=method, peft_config=config)
    assert trainer.state.log_history[0]["ratio_max"] == 1.0


def test_gradient_checkpointing_recomputes_with_the_same_attention(tmp_path):
    settings = {"update_layout": "packed", "max_tokens_per_pack": 64}
    _, plain = recorded(tmp_path, gradient_checkpointing=False, **settings)
    _, recomputed = recorded(tmp_path, gradient_checkpointing=True, **settings)
    assert relative(recomputed[0], plain[0]) < 1e-6


@pytest.mark.parametrize(("layout", "backend"), [("packed", "aot_eager"), ("padded", "eager")])
def test_compiled_layers_give_the_same_gradient(tmp_path, compiled_by, layout, backend):
    """Through Dynamo, and once through AOTAutograd under gradient checkpointing.

    The code generator is the GPU benchmark's to check.
    """
    compiled_by(backend)
    settings = {"update_layout": layout, "max_tokens_per_pack": 64, "rollout_func": fixed_rollout}
    checkpointing = layout == "packed"
    # A second pass over a rollout has statistics taken before it, which compile anew.
    settings |= {"num_iterations": 1 if checkpointing else 2, "max_steps": 3}
    settings["gradient_checkpointing"] = checkpointing
    _, plain = recorded(tmp_path, tiny_model(layers=1), **settings)
    trainer, compiled = recorded(tmp_path, tiny_model(layers=1), compile_layers=True, **settings)
    layers = trainer.policy.model.layers
    assert len(trainer.packed.compiled.layers) == len(layers)
    assert not any("forward" in vars(layer) for layer in layers), "generation has its own back"
    assert relative(compiled[0], plain[0]) < 1e-6
    graphs = [log["update/compiled_graphs"] for log in trainer.state.log_history[:-1]]
    assert graphs[0] > 0 and graphs[1] == graphs[-1], "packs of other lengths compile nothing"


def test_layers_that_cannot_be_compiled_stay_as_they_are(tmp_path, compiled_by):
    tries = []

    def broken(graph, inputs, **options):
        tries.append(graph)
        raise RuntimeError("no such backend here")

    compiled_by(broken)
    settings = {"rollout_func": fixed_rollout}
    _, plain = recorded(tmp_path, tiny_model(layers=1), **settings)
    _, tried = recorded(tmp_path, tiny_model(layers=1), compile_layers=True, **settings)
    assert tries and relative(tried[0], plain[0]) < 1e-6


def test_lora_layers_compile(tmp_path, compiled_by):
    compiled_by("eager")
    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    settings = {"rollout_func": fixed_rollout, "peft_config": adapter}
    torch.manual_seed(0)
    _, plain = recorded(tmp_path, tiny_model(layers=1), **settings)
    torch.manual_seed(0)
    _, compiled = recorded(tmp_path, tiny_model(layers=1), compile_layers=True, **settings)
    assert plain[0].norm() > 0 and relative(compiled[0], plain[0]) < 1e-6


def test_float32_head(tmp_path):
    model = tiny_model(tied=False, dtype=torch.bfloat16)
    _, gradients = recorded(tmp_path, model, cast_lm_head_to_fp32=True)
    assert model.lm_head.weight.dtype == torch.float32
    assert gradients[0].norm() > 0


def test_models_that_cannot_be_packed_are_padded():
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": len(WORDS)}
    small = {**shape, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    windowed = MistralForCausalLM(MistralConfig(**small, sliding_window=8))
    choice = choose_attention(windowed, device=CPU, half_precision=True)
    assert choice.layout == "padded" and "sliding" in choice.reason
    with pytest.raises(ACPOError, match=r"update_layout='packed' is not possible: .*sliding"):
        choose_attention(windowed, device=CPU, half_precision=True, wanted="packed")
    open_model = MistralForCausalLM(MistralConfig(**small, sliding_window=None))
    assert choose_attention(
        open_model, device=CPU, half_precision=True, wanted="packed"
    ).layout == ("packed")
    qwen = tiny_model()
    assert choose_attention(qwen, device=CPU, half_precision=False).layout == "padded"
    cuda = torch.device("cuda")
    assert choose_attention(qwen, device=cuda, half_precision=True).implementation == "acpo_packed"
    assert choose_attention(qwen, device=cuda, half_precision=False).layout == "padded"


def test_evaluation_reports_the_same_numbers_without_gradients(tmp_path):
    trainer, _ = recorded(
        tmp_path,
        eval_dataset=prompts(4),
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=4,
    )
    evaluated = next(log for log in trainer.state.log_history if "eval_loss" in log)
    assert {"eval_aligned", "eval_entropy", "eval_reward"} <= set(evaluated)


def test_an_evaluation_in_front_does_not_measure_the_first_rollout(tmp_path):
    measured = []
    before = {"eval_dataset": prompts(2), "eval_strategy": "steps", "eval_on_start": True}
    for more in ({}, before):
        trainer, _ = recorded(tmp_path, method="gtpo", per_device_eval_batch_size=4, **more)
        measured.append(trainer.rollouts.measured)
    assert measured[0] == measured[1] and measured[0]["initial_entropy"] > 0


def test_rows_of_no_token_are_gathered():
    assert Ranks(torch.device("cpu"), together=False).rows(torch.empty(3, 0)).shape == (3, 0)
