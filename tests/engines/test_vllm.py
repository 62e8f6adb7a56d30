"""Training with vLLM colocated: TRL's own code, over the stand-in that has vLLM's signatures."""

import itertools
import os
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.generation import vllm_generation

from acpo import ACPOConfig, ACPOTrainer
from acpo.engines.trl.packing import MiniBatch
from acpo.errors import ACPOError
from acpo.objectives import (
    METHODS,
    aggregation_weights,
    get_method,
    stats_from_logits,
    token_objective,
)
from acpo.objectives.gates import GATES
from engines.tiny import (
    Recorder,
    build,
    options,
    prompts,
    relative,
    tiny_model,
    tiny_tokenizer,
)

FAKE = Path(__file__).parents[1] / "fakevllm"
COLOCATE = {"use_vllm": True, "vllm_mode": "colocate"}


@pytest.fixture
def vllm(monkeypatch):
    def forget():
        for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
            del sys.modules[name]

    environment = dict(os.environ)
    monkeypatch.syspath_prepend(str(FAKE))
    forget()
    import vllm
    from vllm.sampling_params import StructuredOutputsParams

    for name in ("LLM", "SamplingParams", "RequestOutput"):
        monkeypatch.setattr(vllm_generation, name, getattr(vllm, name), raising=False)
    monkeypatch.setattr(
        vllm_generation, "StructuredOutputsParams", StructuredOutputsParams, raising=False
    )
    yield vllm
    forget()
    forget_ranks(environment)


def forget_ranks(before: dict[str, str]) -> None:
    """TRL tells vLLM its rank by variables, which the next trainer would believe."""
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


def trained(folder, model, *, resume=None, **more):
    recorder = Recorder()
    before = dict(os.environ)
    built = build(folder, model, data=prompts(32), callbacks=[recorder], **COLOCATE, **more)
    forget_ranks(before)
    built.train(resume_from_checkpoint=resume)
    return built, recorder.gradients


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_mask"])
def test_the_gradient_is_stock_trls_with_the_same_sampler(tmp_path, vllm, model, mode):
    """Correction included, whose ratios are far from 1: the sampler is sharper than the policy."""
    vllm.FAULTS["gap"] = 1.2
    shared = {"max_steps": 3, "num_iterations": 2, "vllm_importance_sampling_mode": mode}
    ours, mine = trained(tmp_path / "a", model, method="sapo", **shared)
    stock = {"kind": (GRPOTrainer, GRPOConfig), "loss_type": "sapo"}
    _, theirs = trained(tmp_path / "b", model, **stock, **shared)
    for a, b in zip(mine, theirs, strict=True):
        assert b.norm() > 1e-4 and relative(a, b) < 1e-4
    log = ours.state.log_history[0]
    assert log["sampling/sampling_logp_difference/mean"] > 0.05
    assert abs(log["sampling/importance_sampling_ratio/mean"] - 1) > 0.01
    assert 0 <= log["sampling/mode_exposed"] < 0.5


def test_weights_follow_through_sleep_and_dynamic_sampling(tmp_path, vllm, model):
    built, _ = trained(
        tmp_path,
        model,
        max_steps=4,
        steps_per_generation=2,
        vllm_enable_sleep_mode=True,
        dynamic_sampling=True,
    )
    (llm,) = vllm.LLMS
    assert llm.options["enable_sleep_mode"] and llm.options["logprobs_mode"] == "processed_logprobs"
    assert llm.asleep and llm.naps > 2, "asleep during updates"
    rounds = [log.get("dynamic_sampling/rounds", 0) for log in built.state.log_history]
    assert sum(rounds) > 0, "resampling woke it again"
    first = built.state.log_history[0]
    assert first["sampling/sampling_logp_difference/mean"] < 1e-5, "the same weights"
    late = [log for log in built.state.log_history if log.get("step") == 3]
    assert late[0]["sampling/sampling_logp_difference/mean"] < 1e-5, "and after two updates"
    assert first["sampling/mode_exposed"] == 0


def test_a_resumed_run_goes_on_from_its_rollout(tmp_path, vllm, model):
    settings = {"steps_per_generation": 2, "save_strategy": "steps", "save_steps": 1}
    trained(tmp_path, model, max_steps=3, **settings)
    built, _ = trained(tmp_path, model, max_steps=6, resume=True, **settings)
    assert built.state.global_step == 6
    logs = {log["step"]: log for log in built.state.log_history if "ratio" in log}
    assert sorted(logs) == [1, 2, 3, 4, 5, 6]
    assert logs[5]["sampling/sampling_logp_difference/mean"] < 1e-5, "synchronised once resumed"


def test_versions_of_vllm_are_refused_by_name(tmp_path, vllm, model, monkeypatch):
    from acpo import vllm_version

    for found, fits in (
        ("0.21.9", False),
        ("0.22.0", True),
        ("0.31.0+cu130", True),
        ("0.32", False),
    ):
        monkeypatch.setattr(vllm_version, "version", lambda _, found=found: found)
        if fits:
            assert vllm_version.require_vllm("use_vllm") == found
            continue
        with pytest.raises(ACPOError, match=rf"use_vllm: vllm {found} is .* 0.22.0 to 0.31.0 work"):
            trained(tmp_path, model)
    assert not vllm.LLMS, "before an engine was started"


def test_the_versions_are_those_trl_is_written_for():
    import inspect

    from trl.import_utils import is_vllm_available

    from acpo.vllm_version import NEWEST, OLDEST

    assert f'Version("{OLDEST}") <= ' in inspect.getsource(is_vllm_available)
    assert f' <= Version("{NEWEST}")' in inspect.getsource(is_vllm_available)


# The correction in expectation, exactly: every completion of a small vocabulary, by probability.

SMALL = ["<pad>", "<eos>", "a", "b", "c"]
LONGEST = 3


def every_completion(longest: int) -> list[list[int]]:
    """All of them: to the end token, or to the longest length."""
    found = []
    for length in range(1, longest + 1):
        for ids in itertools.product(range(len(SMALL)), repeat=length):
            if 1 not in ids[:-1] and (ids[-1] == 1 or length == longest):
                found.append(list(ids))
    return found


def small_policy(folder) -> str:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(SMALL),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=32,
        pad_token_id=0,
        eos_token_id=1,
    )
    policy = Qwen3ForCausalLM(config)
    policy.get_output_embeddings().weight.data.mul_(30)
    policy.save_pretrained(folder)
    words = {word: i for i, word in enumerate(SMALL)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    ).save_pretrained(folder)
    return str(folder)


def logits_of(policy, ids: torch.Tensor, width: int) -> torch.Tensor:
    return policy(input_ids=ids).logits[:, -width - 1 : -1]


class Enumerated:
    """Every completion once, told with a sampler's log-probabilities that are not the policy's."""

    def __init__(self, folder, method: str, longest: int = LONGEST, **more) -> None:
        self.completions = every_completion(longest)
        count = len(self.completions)
        self.trainer = ACPOTrainer(
            small_policy(folder / "model"),
            lambda completion_ids, **_: [float(len(ids)) for ids in completion_ids],
            ACPOConfig(
                **options(
                    folder,
                    method=method,
                    per_device_train_batch_size=count,
                    num_generations=count,
                    max_completion_length=longest,
                    num_iterations=2,
                    **COLOCATE,
                    **more,
                )
            ),
            Dataset.from_dict({"prompt": ["a b c"]}),
        )
        width = longest
        self.ids = torch.tensor(
            [[2, 3, 4, *ids, *[0] * (width - len(ids))] for ids in self.completions]
        )
        self.mask = torch.tensor([[j < len(ids) for j in range(width)] for ids in self.completions])
        self.policy = self.trainer.policy
        with torch.no_grad():
            logits = logits_of(self.policy, self.ids, width)
        tokens = self.ids[:, -width:, None]
        self.old = torch.log_softmax(logits, -1).gather(-1, tokens)[..., 0]
        noise = torch.randn(logits.shape[-1], generator=torch.Generator().manual_seed(1))
        self.sampler = torch.log_softmax(logits + 0.5 * noise, -1).gather(-1, tokens)[..., 0]
        odd = torch.randn(count, generator=torch.Generator().manual_seed(2))
        self.advantages = odd - odd.mean()
        self.trainer.vllm_generation.generate = self.generate

    def generate(self, prompts, images, num_generations, profiler=None):
        told = [
            [[x] for x in row[: len(ids)].tolist()]
            for row, ids in zip(self.sampler, self.completions, strict=True)
        ]
        return prompts, self.completions, told, None

    def chance(self, logp: torch.Tensor) -> torch.Tensor:
        return torch.where(self.mask, logp, 0.0).sum(1).exp()

    def gradient(self) -> torch.Tensor:
        """In expectation over the sampler's draws, of the second update on them."""
        rollout = self.trainer._generate_and_score_completions(
            [{"prompt": "a b c"}] * len(self.completions)
        )
        rollout["advantages"] = self.advantages * self.chance(self.sampler)
        self.move_on()
        batch = MiniBatch.read(rollout, share=1.0)
        with self.trainer.packed.ready(self.policy):
            self.trainer.packed.run(self.trainer.model, batch, backward=torch.Tensor.backward)
        return self.collect()

    def move_on(self) -> None:
        """The policy that is updated is one update ahead of the one that was to be sampled."""
        generator = torch.Generator().manual_seed(3)
        for parameter in self.policy.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data.add_(1e-4 * noise)

    def reference(self, method: str) -> torch.Tensor:
        """The same over the policy's own draws, by autograd through plain logits."""
        width = self.mask.shape[1]
        row = get_method(method, **({"max_length": width} if method == "dr_grpo" else {}))
        stats = stats_from_logits(
            logits=logits_of(self.policy, self.ids, width), tokens=self.ids[:, -width:]
        )
        found = token_objective(
            row,
            stats=stats,
            old_logp=self.old,
            advantages=self.advantages * self.chance(self.old),
            mask=self.mask,
        )
        (-(found.value * aggregation_weights(row, self.mask)).sum()).backward()
        return self.collect()

    def collect(self) -> torch.Tensor:
        found = torch.cat([p.grad.flatten() for p in self.policy.parameters()])
        self.policy.zero_grad(set_to_none=True)
        return found.clone()


WITHOUT_BATCH = [
    name
    for name, row in METHODS.items()
    if not row.needs_whole_batch and not GATES[row.gate].to_sampler
]


@pytest.mark.parametrize("method", WITHOUT_BATCH)
def test_corrected_updates_agree_in_expectation_with_the_trainers_own(tmp_path, vllm, method):
    mode = {"vllm_importance_sampling_mode": "sequence_truncate"}
    every = Enumerated(tmp_path, method, vllm_importance_sampling_clip_max=1e9, **mode)
    assert every.chance(every.old).sum() == pytest.approx(1.0, abs=1e-5), "all there are"
    corrected = every.gradient()
    wanted = every.reference(method)
    assert wanted.norm() > 1e-4
    assert relative(corrected, wanted) < 1e-3


@pytest.mark.parametrize("method", ["acpo", "sapo", "grpo", "gspo"])
def test_without_the_correction_they_do_not(tmp_path, vllm, method):
    every = Enumerated(tmp_path, method, vllm_importance_sampling_correction=False)
    assert relative(every.gradient(), every.reference(method)) > 0.05


def test_per_token_corrections_are_exact_for_one_token_and_not_beyond(tmp_path, vllm):
    mode = {"vllm_importance_sampling_mode": "token_truncate"}
    one = Enumerated(
        tmp_path / "1", "acpo", longest=1, vllm_importance_sampling_clip_max=1e9, **mode
    )
    assert relative(one.gradient(), one.reference("acpo")) < 1e-3
    more = Enumerated(tmp_path / "3", "acpo", vllm_importance_sampling_clip_max=1e9, **mode)
    assert relative(more.gradient(), more.reference("acpo")) > 0.05, "prefixes are the sampler's"


def test_capped_completions_are_left_out_or_held_at_the_cap(tmp_path, vllm):
    every = Enumerated(tmp_path / "a", "acpo", vllm_importance_sampling_clip_max=1.5)
    ratio = every.chance(every.old) / every.chance(every.sampler)
    assert 0 < (ratio > 1.5).float().mean() < 1
    kept = torch.where(ratio > 1.5, 0.0, ratio)
    masked = every.gradient()
    every.advantages = every.advantages * kept / ratio
    assert relative(masked, every.reference("acpo")) < 1e-3
