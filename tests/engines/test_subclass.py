"""What a subclass or a callback changes is what is trained, or is refused."""

import pytest
import torch
from peft import LoraConfig
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from acpo import ACPOConfig, ACPOTrainer
from acpo.engines.trl.overrides import UNCALLED
from acpo.errors import ACPOError
from engines.tiny import (
    Recorder,
    build,
    odd_tokens,
    options,
    prompts,
    recorded,
    relative,
    tiny_model,
    tiny_tokenizer,
)


def negated(trainer_class):
    class Negated(trainer_class):
        def _calculate_rewards(self, *args, **kwargs):
            return super()._calculate_rewards(*args, **kwargs).neg_()

    return Negated


def test_rewards_of_a_subclass_are_trained_on_and_logged(tmp_path):
    runs = {}
    for name, kind in {
        "ours": (negated(ACPOTrainer), ACPOConfig, {"method": "grpo"}),
        "theirs": (negated(GRPOTrainer), GRPOConfig, {"loss_type": "grpo"}),
    }.items():
        trainer, gradients = recorded(tmp_path / name, kind=kind[:2], **kind[2])
        assert "_calculate_rewards" not in vars(trainer)
        runs[name] = trainer.state.log_history[0]["reward"], gradients[0]
    assert runs["ours"][0] == runs["theirs"][0] < 0
    assert relative(runs["ours"][1], runs["theirs"][1]) < 1e-4


def test_a_subclass_need_not_ask_the_reward_functions(tmp_path):
    class Own(ACPOTrainer):
        def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
            return torch.tensor([[x] for x in odd_tokens(completion_ids_list)])

    def unasked(completion_ids, **_):
        raise AssertionError

    own, (a,) = recorded(tmp_path / "own", kind=(Own, ACPOConfig), rewards=unasked)
    plain, (b,) = recorded(tmp_path / "plain")
    assert own.state.log_history[0]["reward"] == plain.state.log_history[0]["reward"]
    assert a.norm() > 1e-4 and torch.equal(a, b)


def test_rewards_per_token_pass_through_a_subclass_unchanged_or_are_refused(tmp_path):
    def per_token(completion_ids, **_):
        return [[0.5] * len(ids) for ids in completion_ids]

    class Passing(ACPOTrainer):
        def _calculate_rewards(self, *args):
            return super()._calculate_rewards(*args)

    _, (gradient,) = recorded(tmp_path / "a", kind=(Passing, ACPOConfig), rewards=per_token)
    assert gradient.norm() > 0
    with pytest.raises(ACPOError, match="changed rewards that were given per token"):
        recorded(tmp_path / "b", kind=(negated(ACPOTrainer), ACPOConfig), rewards=per_token)


def test_rewards_per_token_are_forgotten_where_none_are_given(tmp_path):
    class First(ACPOTrainer):
        def _calculate_rewards(self, inputs, *args):
            if self.state.global_step == 0:
                return super()._calculate_rewards(inputs, *args)
            return torch.zeros(len(inputs), 1)

    def per_token(completion_ids, **_):
        return [[0.5] * len(ids) for ids in completion_ids]

    kind = First, ACPOConfig
    _, (first, second) = recorded(tmp_path, kind=kind, rewards=per_token, max_steps=2)
    assert first.norm() > 0 == second.norm()


@pytest.mark.parametrize("name", UNCALLED)
def test_a_subclass_with_a_loss_of_its_own_is_refused(tmp_path, name):
    assert hasattr(GRPOTrainer, name)
    kind = type("Own", (ACPOTrainer,), {name: lambda self, *args, **kwargs: None})
    with pytest.raises(ACPOError, match=f"Own overrides {name}, .*howto.md#add-a-method"):
        build(tmp_path, kind=(kind, ACPOConfig))


class Changes(TrainerCallback):
    """Sets attributes before each step, as a schedule of the KL penalty does: of the trainer, or of
    its arguments."""

    def __init__(self, plan):
        self.plan = plan

    def on_step_begin(self, args, state, control, **_):
        for name, values in self.plan.items():
            owner = args if name.startswith("args.") else self.trainer
            setattr(owner, name.removeprefix("args."), values[state.global_step])


def gradients_with(folder, plan, model=None, **more):
    recorder, changes = Recorder(), Changes(plan)
    options = {"max_steps": 3, "num_iterations": 2, "callbacks": [recorder, changes], **more}
    changes.trainer = build(folder, model, **options)
    changes.trainer.train()
    return recorder.gradients


LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
CHANGED = {
    "beta of an adapter": (
        {"peft_config": LORA, "num_iterations": 1},
        {"beta": [0.0, 50.0, 0.5]},
    ),
    "beta": ({"beta": 0.01}, {"beta": [0.01, 50.0, 0.0]}),
    "KL correction": (
        {"beta": 50.0},
        {"beta": [50.0] * 3, "args.use_bias_correction_kl": [True, False, True]},
    ),
    "clip": ({"epsilon": 0.2}, {"epsilon_low": [0.2, 1e-3, 0.2], "epsilon_high": [0.2, 2e-3, 0.2]}),
    "entropy bonus": ({"entropy_coef": 0.01}, {"entropy_coef": [0.01, 1.0, 0.0]}),
    "off-policy mask": ({}, {"off_policy_mask_threshold": [None, 1e-4, None]}),
    "gate": ({}, {"args.sapo_temperature_neg": [1.05, 9.0, 1.05]}),
}


@pytest.mark.parametrize(("options", "plan"), CHANGED.values(), ids=CHANGED)
def test_what_a_callback_changes_holds_at_the_next_step_as_in_trl(tmp_path, options, plan):
    model = None
    if "beta" in plan:  # the reference is loaded from where the policy came from
        model = str(tmp_path / "model")
        tiny_model().save_pretrained(model)
        tiny_tokenizer().save_pretrained(model)
    stock = GRPOTrainer, GRPOConfig
    method = "sapo" if "args.sapo_temperature_neg" in plan else "grpo"
    ours = gradients_with(tmp_path / "a", plan, model, method=method, **options)
    theirs = gradients_with(tmp_path / "b", plan, model, kind=stock, loss_type=method, **options)
    constant = gradients_with(tmp_path / "c", {}, model, method=method, **options)
    assert len(ours) == len(theirs) == 3
    for a, b in zip(ours, theirs, strict=True):
        assert b.norm() > 1e-4 and relative(a, b) < 1e-4
    assert relative(constant[1], ours[1]) > 1e-2


def test_the_clip_range_to_change_is_the_methods(tmp_path):
    for method, given, low, high in (
        ("grpo", {}, 0.2, 0.2),
        ("grpo", {"epsilon": 0.1}, 0.1, 0.1),
        ("grpo", {"epsilon_high": 0.1}, 0.2, 0.1),
        ("dapo", {"epsilon": 0.1}, 0.1, 0.28),
        ("gspo", {"method_options": {"epsilon_high": 5e-4}}, 3e-4, 5e-4),
        ("sapo", {}, None, None),
    ):
        trainer = build(tmp_path, method=method, **given)
        assert (trainer.epsilon_low, trainer.epsilon_high) == (low, high)
    trainer = build(tmp_path, method="grpo", epsilon=0.1)
    trainer.epsilon_high = 0.3
    trainer.train()
    options = trainer.packed.settings.method.options
    assert (options["epsilon"], options["epsilon_high"]) == (0.1, 0.3)


def test_options_without_a_field_are_followed_as_others_are(tmp_path):
    plan = {"args.method_options": [{"k_pos": 2.0}, {"k_pos": 9.0}]}
    changed, constant = (
        gradients_with(tmp_path / name, changes, method="vespo", max_steps=2)
        for name, changes in (("a", plan), ("b", {}))
    )
    assert torch.equal(changed[0], constant[0]) and relative(changed[1], constant[1]) > 1e-2


def test_what_the_first_rollout_measured_outlives_a_change(tmp_path):
    plan = {"args.gamma": [0.1, 0.1000001, 0.1000001]}
    found, constant = (
        gradients_with(tmp_path / name, changes, method="gtpo")
        for name, changes in (("a", plan), ("b", {"args.gamma": [0.1] * 3}))
    )
    for a, b in zip(found, constant, strict=True):
        assert b.norm() > 0 and relative(a, b) < 1e-3


def test_a_configuration_changed_too_late_is_refused(tmp_path):
    config = ACPOConfig(**options(tmp_path))
    trainer = ACPOTrainer(
        tiny_model(), odd_tokens, config, prompts(), processing_class=tiny_tokenizer()
    )
    config.max_steps = 2
    with pytest.raises(ACPOError, match=r"max_steps=2 .* set it on trainer\.args"):
        trainer.train()


@pytest.mark.parametrize(
    ("method", "plan", "words"),
    [
        ("grpo", {"beta": [0.0, 0.1]}, "beta=0.1 was 0 when the trainer was built"),
        ("sapo", {"temperature": [1.0, 0.5]}, "temperature=0.5 was 1.0 when the trainer was built"),
        ("sapo", {"loss_type": [None, "grpo"]}, "loss_type='grpo' was .* method="),
        ("sapo", {"max_completion_length": [12, 24]}, "max_completion_length=24 was 12"),
        ("sapo", {"args.method": ["sapo", "grpo"]}, r"args\.method='grpo' was 'sapo'"),
        ("vespo", {"args.vespo_k_pos": [2.0, 9.0]}, "vespo_k_pos=9.0 is not honoured"),
        ("sapo", {"_compute_loss": [len, len]}, "_compute_loss was replaced"),
        ("sapo", {"epsilon_low": [None, 0.1]}, "epsilon=0.1 is not an option of method 'sapo'"),
    ],
)
def test_changes_that_cannot_be_followed_are_refused(tmp_path, method, plan, words):
    with pytest.raises(ACPOError, match=words):
        gradients_with(tmp_path, plan, method=method, max_steps=2)
