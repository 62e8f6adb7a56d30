"""The gradient of every optimizer step against stock TRL's, end to end from the same seed."""

from typing import Any

import pytest
import torch
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from acpo import ACPOConfig, ACPOTrainer
from engines.tiny import build, prompts, recorded, relative, tiny_model, tiny_tokenizer

STOCK_AND_OURS = ((ACPOTrainer, ACPOConfig), (GRPOTrainer, GRPOConfig))
STOCK: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo", "epsilon": 0.2, "epsilon_high": 0.2},
    "dapo": {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28},
    "sapo": {"loss_type": "sapo"},
    "gspo": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon": 0.1,
        "epsilon_high": 0.2,
    },
    "8020": {
        "loss_type": "dapo",
        "epsilon": 0.2,
        "epsilon_high": 0.28,
        "top_entropy_quantile": 0.2,
    },
    "vespo": {"loss_type": "vespo"},
    "bnpo": {"loss_type": "bnpo", "epsilon": 0.2, "epsilon_high": 0.2},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "several updates per rollout": {
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
        "temperature": 0.8,
    },
    "two iterations, masks": {
        "gradient_accumulation_steps": 2,
        "num_iterations": 2,
        "mask_truncated_completions": True,
    },
    "kl": {"beta": 0.1, "num_iterations": 2, "temperature": 0.8},
    "sampling ratio per token": {"num_iterations": 2},
    "tools": {"num_iterations": 2},
    "on-policy, accumulation": {"gradient_accumulation_steps": 2},
    "sampling ratio per sequence": {"num_iterations": 2},
    "uncorrected kl": {"beta": 0.1, "num_iterations": 2, "use_bias_correction_kl": False},
    "entropy bonus": {"entropy_coef": 0.01},
    "off-policy mask": {"num_iterations": 2, "off_policy_mask_threshold": 1e-3},
    "batch scale": {"scale_rewards": "batch"},
}
EVERY_METHOD = list(SETTINGS)[:5]
CASES = [(m, s) for s in SETTINGS for m in STOCK if s in EVERY_METHOD or m in ("sapo", "gspo")]


def sampling_ratio(rollout, kind):
    per_token = 0.8 + (rollout["completion_ids"] % 5).float() / 10
    per_token[~rollout["completion_mask"].bool()] = 1.0  # as TRL
    return per_token if kind == "token" else per_token[:, :1]


def with_ratio(trainer_class, kind):
    """A trainer whose rollouts carry vLLM's correction, without vLLM."""

    class Corrected(trainer_class):
        def _generate_and_score_completions(self, inputs):
            rollout = super()._generate_and_score_completions(inputs)
            rollout["importance_sampling_ratio"] = sampling_ratio(rollout, kind)
            return rollout

    if issubclass(trainer_class, ACPOTrainer):
        return Corrected

    class Reading(Corrected):
        """TRL's own loss looks at the correction only where vLLM samples."""

        def _compute_loss(self, model, inputs):
            self.use_vllm = True
            try:
                return super()._compute_loss(model, inputs)
            finally:
                self.use_vllm = False

    return Reading


def rollout_with_tools(prompts, trainer):
    """Random completions in which some tokens were not the model's."""
    generator = torch.Generator().manual_seed(len(prompts) + trainer.state.global_step)
    ids, masks = [], []
    for _ in prompts:
        length = int(torch.randint(4, 12, (1,), generator=generator))
        ids.append(torch.randint(2, 60, (length,), generator=generator).tolist())
        masks.append([1, 0, 0, *([1] * (length - 4)), 0])
    prompt_ids = [trainer.processing_class(p)["input_ids"] for p in prompts]
    return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": None, "env_mask": masks}


def gradients(kind, folder, setting, **more):
    if setting.startswith("sampling ratio"):
        kind = with_ratio(kind[0], setting.split()[-1]), kind[1]
    model = tiny_model(layers=1)
    if setting.startswith(("several", "two")):  # some completions end before the limit
        model.generation_config.eos_token_id = list(range(1, 10))
    if more.get("beta"):
        model.save_pretrained(folder / "model")
        tiny_tokenizer().save_pretrained(folder / "model")
        model = str(folder / "model")
    if setting == "tools":
        more["rollout_func"] = rollout_with_tools
    return recorded(folder, model, kind=kind, data=prompts(32), max_steps=3, **more)[1]


@pytest.mark.parametrize(("method", "setting"), CASES)
def test_every_step_has_the_gradient_of_stock_trl(tmp_path, method, setting):
    more = dict(SETTINGS[setting])
    if method in ("8020", "bnpo"):  # TRL's quantile and mean are of one micro-batch
        size = more.pop("gradient_accumulation_steps", 1)
        more["per_device_train_batch_size"] = 8 * size
        more["steps_per_generation"] = more.get("steps_per_generation", size) // size
    clip = {k: v for k, v in STOCK[method].items() if k.startswith("epsilon")}
    ours, theirs = (
        gradients(kind, tmp_path, setting, **own, **more)
        for kind, own in (
            ((ACPOTrainer, ACPOConfig), {"method": method, **clip}),
            ((GRPOTrainer, GRPOConfig), STOCK[method]),
        )
    )
    assert len(ours) == len(theirs) == 3
    for a, b in zip(ours, theirs, strict=True):
        assert b.norm() > 1e-4
        assert relative(a, b) < 1e-4


class EndsEpochs(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_epoch_stop = state.global_step % 2 == 0


def test_epochs_that_end_early_have_the_prompts_of_stock_trl(tmp_path):
    asked = {}
    for kind in STOCK_AND_OURS:
        seen = asked[kind] = []

        def keep(prompts, completion_ids, seen=seen, **_):
            seen.append(list(prompts))
            return [float(sum(ids) % 3 == 0) for ids in completion_ids]

        trainer = build(
            tmp_path,
            kind=kind,
            rewards=keep,
            callbacks=[EndsEpochs()],
            num_train_epochs=3,
            max_steps=-1,
        )
        trainer.train()
    ours, theirs = asked.values()
    assert ours == theirs and len(ours) == 6 and ours[:2] != ours[2:4] != ours[4:]


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def test_the_logged_kl_is_stock_trls(tmp_path):
    tiny_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    found = []
    for kind, name in zip(STOCK_AND_OURS, ("method", "loss_type"), strict=True):
        more = {"beta": 0.1, "num_iterations": 4, "max_steps": 4, name: "grpo"}
        trainer, _ = recorded(tmp_path, str(tmp_path / "model"), kind=kind, **more)
        found.append(logged(trainer, "kl"))
    assert found[0] == pytest.approx(found[1], rel=1e-4) and found[0][-1] > 1e-3


@pytest.mark.parametrize("leaves_training_on", [False, True])
def test_an_evaluation_is_that_of_stock_trl(tmp_path, monkeypatch, leaves_training_on):
    """Of groups that train nothing too, and where continuous batching turns training on."""
    generate = GRPOTrainer._generate_single_turn

    def continuous(self, *args, **kwargs):
        found = generate(self, *args, **kwargs)
        self.model.train(self.model.training or leaves_training_on)
        return found

    found = []
    for kind, name in zip(STOCK_AND_OURS, ("method", "loss_type"), strict=True):
        more = {"num_generations_eval": 1, "per_device_eval_batch_size": 4, name: "grpo"}
        trainer = build(tmp_path, kind=kind, eval_dataset=prompts(8), **more)
        with monkeypatch.context() as patched:
            if kind[0] is ACPOTrainer:
                patched.setattr(GRPOTrainer, "_generate_single_turn", continuous)
            torch.manual_seed(5)
            found.append(trainer.evaluate())
    ours, theirs = found
    for name in ("eval_entropy", "eval_reward", "eval_completions/mean_length"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-4)
