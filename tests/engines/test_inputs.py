"""Bad input is named before time is spent on it; odd rewards never become advantages."""

import functools
import os

import pandas as pd
import pytest
import torch
from datasets import Dataset, DatasetDict
from peft import LoraConfig
from transformers import (
    AutoModelForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    TrainerCallback,
)
from trl.rewards import get_soft_overlong_punishment

from acpo import ACPOConfig, ACPOTrainer
from acpo.engines.trl.rewards import (
    checked_reward,
    checked_rewards,
    combined_rewards,
    distinct,
    scaled_advantages,
    separately_scaled_advantages,
    soft_overlong,
    without_verdict,
)
from acpo.errors import ACPOError, NonFiniteError
from acpo.verify.rewards import around, math_correct, math_reward
from engines.tiny import (
    WORDS,
    build,
    odd_tokens,
    options,
    prompts,
    recorded,
    tiny_model,
    tiny_tokenizer,
)
from engines.worker import fixed_rollout


def texts(*values):
    return Dataset.from_dict({"prompt": [*values, *["w1 w2"] * 8]})


def needs_gold(completions, gold, **_):
    return [0.0] * len(completions)


def needs_answer(completions, answer, **_):
    return [float(len(text) % 2) for text in completions]


CHAT = Dataset.from_dict({"prompt": [[{"role": "user", "content": "w1"}]] * 8})

BAD = {
    "fewer prompts than a rollout": (
        {"data": prompts(1)},
        r"has 1 prompts, but one rollout takes 2",
    ),
    "no prompt column": (
        {"data": prompts().rename_column("prompt", "question")},
        r"no 'prompt' column; it has question, answer",
    ),
    "empty prompt": ({"data": texts("w1", "  ")}, r"prompt 1 of the training data is empty"),
    "no prompt in a row": (
        {"data": texts(None), "tokenizer": tiny_tokenizer(chat=True)},
        r"prompt 0 of the training data is None, neither a text nor a list of messages",
    ),
    "prompts as tokens": (
        {"data": Dataset.from_dict({"prompt": [[3, 4]] * 8})},
        r"prompt 0 of the training data is \[3, 4\], neither a text nor",
    ),
    "one message in place of a list": (
        {"data": Dataset.from_dict({"prompt": [{"role": "user", "content": "w1"}] * 8})},
        r"is \{'role': 'user', 'content': 'w1'\}, neither a text nor",
    ),
    "long prompt": (
        {"data": texts("w1 " * 250)},
        r"prompt 0 of the training data has 250 tokens, but only 244",
    ),
    "missing column": ({"rewards": needs_gold}, r"needs 'gold', which is not a column"),
    "one prompt": (
        {"rewards": lambda prompt, completions, **_: [0.0] * len(completions)},
        r"needs 'prompt', which is given for all completions at once, as 'prompts'",
    ),
    "no chat template": ({"data": CHAT}, r"conversation, but the tokenizer has no chat template"),
    "several data sets": (
        {"data": DatasetDict(test=prompts(), train=prompts())},
        r"is a DatasetDict, .*holds 'test', 'train': pass one of them, data\['train'\]",
    ),
    "rows": ({"data": [{"prompt": "w1"}] * 16}, r"is a list, .*Dataset.from_list"),
    "a table": ({"data": {"prompt": ["w1"] * 16}}, r"is a dict, not a datasets.Dataset; make it"),
    "streamed, no prompt column": (
        {"data": prompts().rename_column("prompt", "question").to_iterable_dataset()},
        r"the training data has no 'prompt' column; it has question, answer",
    ),
    "evaluation without prompts": (
        {"eval_dataset": prompts().rename_column("prompt", "q")},
        r"eval_dataset has no 'prompt' column; it has q, answer",
    ),
    "streamed evaluation without prompts": (
        {"eval_dataset": {"a": prompts().remove_columns("prompt").to_iterable_dataset()}},
        r"eval_dataset\['a'\] has no 'prompt' column",
    ),
    "evaluation on several data sets": (
        {"eval_dataset": {"a": DatasetDict(test=prompts())}},
        r"eval_dataset\['a'\] is a DatasetDict, .*pass one of them, data\['test'\]",
    ),
    "evaluation lacks a column": (
        {"rewards": needs_answer, "eval_dataset": prompts().remove_columns("answer")},
        r"needs 'answer', which is not a column of eval_dataset; it has prompt",
    ),
    "one of two evaluations lacks a column": (
        {
            "rewards": math_correct,
            "eval_dataset": {"a": prompts(), "b": prompts().remove_columns("answer")},
        },
        r"needs the columns answer; eval_dataset\['b'\] has prompt",
    ),
    "empty prompt in the evaluation": (
        {"eval_dataset": texts("w1", "  ")},
        r"prompt 1 of eval_dataset is empty",
    ),
    "columns taken away": (
        {"rewards": needs_answer, "remove_unused_columns": True},
        r"needs 'answer', a column that remove_unused_columns=True takes away",
    ),
    "required columns taken away": (
        {"rewards": math_correct, "remove_unused_columns": True},
        r"needs the columns answer, which remove_unused_columns=True takes away",
    ),
    "no **kwargs": (
        {"rewards": lambda completions, answer: [0.0] * len(completions)},
        r"does not take prompts, completion_ids, .*add \*\*kwargs",
    ),
    "no **kwargs, from a file": (
        {"rewards": around(lambda completions, answer: [0.0] * len(completions))},
        r"does not take prompts, completion_ids, .*add \*\*kwargs",
    ),
    "no **kwargs, a stream": (
        {
            "rewards": lambda completions: [0.0] * len(completions),
            "data": prompts().to_iterable_dataset().map(lambda row: row),
        },
        r"does not take prompts, completion_ids, .*add \*\*kwargs",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_said_at_construction(tmp_path, case):
    arguments, message = BAD[case]
    with pytest.raises(ACPOError, match=message):
        build(tmp_path, **arguments)


def test_what_a_reward_function_may_ask_for(tmp_path):
    """All that it is given, by name; a column that the rollout function adds."""

    def by_name(prompts, completions, completion_ids, trainer_state, log_extra, log_metric, answer):
        return [float(len(text) % 2) for text in completions]

    def added(completions, gold, **_):
        return [float(len(text) % 2) for text in completions]

    def rollout(prompts, trainer):
        return {**fixed_rollout(prompts, trainer), "gold": ["1"] * len(prompts)}

    def of_text(text):
        return float(len(text) % 2)

    @functools.wraps(of_text)
    def of_all(completions, **_):
        return [of_text(text) for text in completions]

    data = {"eval_dataset": {"a": prompts(4), "b": prompts(4)}}
    rewards = (by_name, functools.partial(needs_answer), of_all)
    trainer = build(tmp_path, rewards=rewards, **data)
    trainer.train()
    assert trainer.reward_func_names == ["by_name", "needs_answer", "of_text"]
    build(tmp_path, rewards=added, rollout_func=rollout).train()
    build(tmp_path, remove_unused_columns=True, **data).train()


class Scorer:
    def __init__(self, scale=1.0):
        self.scale = scale

    def __call__(self, completions, **_):
        return [self.scale * len(text) for text in completions]


@pytest.mark.parametrize(
    ("makes", "why"),
    [
        (math_reward, "'math_reward' takes neither prompts nor completions: give what math_rew"),
        (get_soft_overlong_punishment, "takes neither prompts nor completions: give what get_"),
        (lambda: None, "takes neither prompts nor completions"),
        (Scorer, r"'Scorer' is a class: give what Scorer\(...\) returns; in a recipe, my_rewards"),
        (torch.nn.Linear, "'Linear' is a class"),
    ],
)
def test_what_makes_a_reward_function_is_none(makes, why):
    with pytest.raises(ACPOError, match=why):
        checked_rewards([makes], {"the training data": prompts(4)})
    scorers = (Scorer(2.0), functools.partial(needs_answer), Scorer().__call__)
    checked_rewards([*scorers, math_reward()], {"the training data": prompts(4)})


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return {"prompt": f"w{index} w2", "answer": "1"}


def test_what_trl_evaluates_on_is_evaluated_on(tmp_path):
    rows = [Rows()[index] for index in range(4)]
    for data, losses in (({}, []), (rows, ["eval_loss"]), ({"a": Rows()}, ["eval_a_loss"])):
        found = build(tmp_path, rewards=needs_answer, eval_dataset=data).evaluate()
        assert [name for name in found if name.endswith("loss")] == losses


def test_chat_prompts_are_measured_with_their_template(tmp_path):
    """The template adds a token to each: what the model reads is what must fit."""
    data = Dataset.from_dict({"prompt": [[{"role": "user", "content": "w1 " * 244}]] * 8})
    build(tmp_path, data=texts("w1 " * 244))
    with pytest.raises(
        ACPOError, match="prompt 0 of the training data has 245 tokens, but only 244"
    ):
        build(tmp_path, data=data, tokenizer=tiny_tokenizer(chat=True))


def test_chat_prompts_are_measured_with_the_options_of_their_template(tmp_path):
    tokenizer = tiny_tokenizer(chat=True)
    tokenizer.chat_template += "{% if long %}{{ 'w2 ' * 250 }}{% endif %}"
    build(tmp_path, data=CHAT, tokenizer=tokenizer)
    with pytest.raises(ACPOError, match="leave room for max_completion_length"):
        build(tmp_path, data=CHAT, tokenizer=tokenizer, chat_template_kwargs={"long": True})


def test_rows_are_read_as_a_transform_makes_them(tmp_path):
    def asked(rows):
        return {"prompt": rows["question"], "gold": rows["question"]}

    raw = Dataset.from_dict({"question": ["w1 w2"] * 8})
    trainer = build(tmp_path, data=raw.with_transform(asked), rewards=needs_gold)
    trainer.train()
    assert trainer.state.global_step == 1
    long = raw.with_transform(lambda rows: {"prompt": ["w1 " * 250 for _ in rows["question"]]})
    with pytest.raises(ACPOError, match="prompt 0 of the training data has 250 tokens"):
        build(tmp_path, data=long)


def test_a_template_that_refuses_the_prompts_is_told_at_the_start(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('only one turn') }}"
    with pytest.raises(ACPOError, match="TemplateError: only one turn"):
        build(tmp_path, data=CHAT, tokenizer=tokenizer)


def test_chat_prompts_train_with_a_template(tmp_path):
    trainer = build(tmp_path, data=CHAT, tokenizer=tiny_tokenizer(chat=True))
    trainer.train()
    assert trainer.state.global_step == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write anywhere")
def test_unwritable_folder(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ACPOError, match="cannot be written to"):
        build(tmp_path / "out")


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(ACPOError, match=r"output_dir=.*cannot be written to"):
        build(tmp_path / "out")


def test_no_tokenizer_and_no_config(tmp_path):
    with pytest.raises(ACPOError, match="processing_class is missing"):
        ACPOTrainer(tiny_model(), odd_tokens, ACPOConfig(**options(tmp_path)), prompts())
    with pytest.raises(ACPOError, match="pass an ACPOConfig"):
        ACPOTrainer(tiny_model(), odd_tokens, object(), prompts())


def test_the_tokenizer_beside_a_models_weights_is_found(tmp_path):
    """As stock TRL finds it; transformers makes an empty one where there is none."""
    folder, config = tmp_path / "model", ACPOConfig(**options(tmp_path / "run"))
    tiny_model().save_pretrained(folder)
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    for model in (loaded, str(folder)):
        with pytest.raises(ACPOError, match=r"no tokens but special ones; .*processing_class"):
            ACPOTrainer(model, odd_tokens, config, prompts())
    tiny_tokenizer().save_pretrained(folder)
    trainer = ACPOTrainer(loaded, odd_tokens, config, prompts())
    trainer.train()
    assert len(trainer.processing_class) == len(WORDS) and trainer.state.global_step == 1


def test_arguments_are_taken_in_trls_order(tmp_path):
    class Counts(TrainerCallback):
        steps = 0

        def on_step_end(self, *args, **_):
            self.steps += 1

    def positional(*later, **more):
        config = ACPOConfig(**options(tmp_path))
        return ACPOTrainer(
            tiny_model(), needs_gold, config, prompts(), None, tiny_tokenizer(), *later, **more
        )

    def rollout(prompts, trainer):
        return {**fixed_rollout(prompts, trainer), "gold": ["1"] * len(prompts)}

    counts = Counts()
    lora = LoraConfig(r=4, target_modules=["q_proj"])
    trainer = positional([None], [counts], (None, None), None, lora, None, rollout)
    trainer.train()
    assert counts.steps == 1 and trainer.rollout_func is rollout and trainer.model.peft_config
    with pytest.raises(TypeError, match="multiple values for argument 'callbacks'"):
        positional(None, [counts], callbacks=[counts])
    with pytest.raises(TypeError, match="unexpected keyword argument 'callback'"):
        positional(callback=[counts])


def test_mixture_of_experts_needs_its_auxiliary_loss_off(tmp_path):
    config = Qwen3MoeConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
    )
    with pytest.raises(ACPOError, match=r"set router_aux_loss_coef=0.0"):
        build(tmp_path, model=Qwen3MoeForCausalLM(config))
    trainer = build(tmp_path, model=Qwen3MoeForCausalLM(config), router_aux_loss_coef=0.0)
    trainer.train()
    assert trainer.state.global_step == 1


def raises(completions, **_):
    raise KeyError("gold")


def not_a_number(completions, **_):
    return [1.0, float("nan")] * (len(completions) // 2)


def too_few(completions, **_):
    return [1.0]


def words(completions, **_):
    return ["good"] * len(completions)


def a_number(completions, **_):
    return 1.0


def by_number(completions, **_):
    return dict.fromkeys(range(len(completions)), 1.0)


def digits(completions, **_):
    return "10" * (len(completions) // 2)


async def late(completions, **_):
    return [1.0]


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (raises, r"'raises' raised KeyError: 'gold'"),
        (not_a_number, r"'not_a_number' returned nan for completion 1; return None"),
        (too_few, r"'too_few' returned 1 rewards for 8 completions"),
        (words, r"'words' returned 'good' for completion 0"),
        (a_number, r"'a_number' returned float, not a list"),
        (lambda completions, **_: torch.tensor(1.0), r"returned Tensor, not a list"),
        (by_number, r"'by_number' returned dict, not a list"),
        (digits, r"'digits' returned str, not a list"),
        (late, r"'late' returned 1 rewards for 8 completions"),
    ],
)
def test_reward_functions_that_misbehave(tmp_path, reward, message):
    with pytest.raises(ACPOError, match=message):
        build(tmp_path, rewards=reward).train()


def test_no_verdict_leaves_the_group_and_trains_nothing(tmp_path):
    def first_unjudged(completion_ids, **_):
        return [None if i % 4 == 0 else float(i % 2) for i in range(len(completion_ids))]

    trainer, _ = recorded(tmp_path, rewards=first_unjudged)
    log = trainer.state.log_history[0]
    assert log["rewards/unjudged"] == 0.25
    advantages = list(trainer._logs["advantages"])
    assert advantages[0] == advantages[4] == 0.0
    assert sum(advantages[1:4]) == pytest.approx(0.0, abs=1e-6) and advantages[1] > 0


@pytest.mark.parametrize("how", ["sum_then_normalize", "normalize_then_sum"])
def test_a_function_of_weight_0_is_logged_and_decides_nothing(tmp_path, how):
    def watched(completion_ids, **_):
        return [None if i % 4 else 3.0 for i in range(len(completion_ids))]

    settings = {"data": prompts(32), "multi_objective_aggregation": how}
    _, alone = recorded(tmp_path, rewards=[odd_tokens], **settings)
    both = {"rewards": [odd_tokens, watched], "reward_weights": [1.0, 0.0]}
    trainer, gradients = recorded(tmp_path, **both, **settings)
    assert torch.equal(gradients[0], alone[0]) and alone[0].norm() > 0
    log = trainer.state.log_history[0]
    assert (log["rewards/watched/mean"], log["rewards/unjudged"]) == (3.0, 0.0)


def test_advantages_by_hand():
    rewards = torch.tensor([[1.0, 0.0], [0.0, torch.nan], [torch.nan, torch.nan], [0.1, 0.1]])
    weights, penalties = torch.tensor([1.0, 2.0]), torch.tensor([0, -1.0, 0, 0])
    combined = combined_rewards(rewards, weights, penalties, 1)  # the second does not apply
    assert combined[:2].tolist() == [1.0, -1.0] and combined[2].isnan()
    assert combined[3].item() == pytest.approx(0.3)
    combined = combined_rewards(rewards, weights, penalties, 4)  # it judged the others
    assert combined[0] == 1.0 and combined[1].isnan() and combined[2].isnan()
    constant = torch.full((6,), 0.1)
    assert scaled_advantages(constant, 6, "group").tolist() == [0.0] * 6
    assert scaled_advantages(constant, 6, "batch").tolist() == [0.0] * 6
    pair = torch.tensor([0.0, 1.0, 1.0, 1.0])
    assert scaled_advantages(pair, 2, "none").tolist() == [-0.5, 0.5, 0.0, 0.0]
    assert scaled_advantages(pair, 2, "group")[1] == pytest.approx(0.5 / (0.5**0.5 + 1e-4))
    assert scaled_advantages(pair, 2, "batch")[1] == pytest.approx(0.5 / (0.5 + 1e-4))
    constant = separately_scaled_advantages(torch.full((4, 2), 0.1), weights, 2)
    assert constant.tolist() == [0.0] * 4
    some = separately_scaled_advantages(torch.tensor([[0.0], [1.0], [5.0], [5.0]]), weights[:1], 2)
    assert some[1] == -some[0] != 0 and some[2:].tolist() == [0.0, 0.0]


def test_one_missing_verdict_of_two_is_no_verdict():
    """A format reward must not turn an answer nobody could check into a wrong one."""
    nan = torch.nan
    rewards = torch.tensor([[1.0, 1.0], [0.0, 1.0], [nan, 1.0], [1.0, 1.0]])
    assert without_verdict(rewards, 4).tolist() == [False, False, True, False]
    combined = combined_rewards(rewards, torch.ones(2), None, 4)
    advantages = scaled_advantages(combined, 4, "group")
    assert advantages[2] == 0 and advantages[0] == advantages[3] > 0 > advantages[1]
    assert separately_scaled_advantages(rewards, torch.ones(2), 4)[2] == 0
    other_task = torch.tensor([[nan, 1.0], [nan, 0.0]])
    assert without_verdict(other_task, 2).tolist() == [False, False]


def nobody(completion_ids, **_):
    return [None] * len(completion_ids)


LORA = LoraConfig(r=4, target_modules=["q_proj"])


@pytest.mark.parametrize(
    "more", [{"method": "gtpo"}, {"beta": 0.1, "peft_config": LORA}, {"entropy_coef": 0.01}]
)
def test_what_could_not_be_judged_is_never_trained_on(tmp_path, more):
    _, gradients = recorded(tmp_path, rewards=nobody, num_iterations=2, max_steps=2, **more)
    assert all((gradient == 0).all() for gradient in gradients)


def test_silent_steps_log_no_ratio(tmp_path):
    trainer, _ = recorded(tmp_path, rewards=nobody)
    assert "ratio_max" not in trainer.state.log_history[0]
    trainer, _ = recorded(tmp_path)
    assert trainer.state.log_history[0]["ratio_max"] == pytest.approx(1.0)


class Judge:
    async def __call__(self, completions, **_):
        return [1.0] * len(completions)


def test_async_rewards_log_under_their_own_names():
    async def slow(completions, **_):
        return [1.0] * len(completions)

    assert checked_reward(Judge()).__name__ == "Judge"
    assert checked_reward(slow).__name__ == "slow"
    assert checked_reward(functools.partial(functools.partial(slow), x=1)).__name__ == "slow"


def weighted(completion_ids, w, **_):
    return [w] * len(completion_ids)


def test_rewards_of_one_name_are_kept_apart(tmp_path):
    """Partials are named as in stock TRL, which averages two functions of one name."""
    rewards = [
        functools.partial(weighted, w=1.0),
        functools.partial(functools.partial(Judge(), x=1), y=2),
        functools.partial(weighted, w=4.0),
    ]
    trainer = build(
        tmp_path, rewards=rewards, log_completions=True, num_completions_to_print=0, max_steps=2
    )
    trainer.train()
    names = ["weighted", "Judge", "weighted_2"]
    for log in trainer.state.log_history[:2]:
        assert [log[f"rewards/{name}/mean"] for name in names] == [1.0, 1.0, 4.0]
    table = pd.read_parquet(next((tmp_path / "completions").glob("*")))
    assert [set(table[name]) for name in names] == [{1.0}, {1.0}, {4.0}]
    assert distinct(["a", "a", "a_2", "a"]) == ["a", "a_2", "a_2_2", "a_3"]


def test_soft_overlong_by_hand():
    lengths = torch.tensor([10.0, 60.0, 80.0, 100.0])
    penalties = soft_overlong(lengths, limit=100, cache=40, penalty=1.0)
    assert penalties.tolist() == pytest.approx([0.0, 0.0, -0.5, -1.0])


def test_soft_overlong_separates_a_constant_group(tmp_path):
    def constant(completions, **_):
        return [1.0] * len(completions)

    model = tiny_model()
    model.generation_config.eos_token_id = list(range(1, 20))  # of different lengths
    plain, _ = recorded(tmp_path, model, rewards=constant)
    penalised, gradients = recorded(tmp_path, model, rewards=constant, soft_overlong_cache=11)
    assert plain.state.log_history[0]["update/rows_skipped"] == 1.0
    assert penalised.state.log_history[0]["update/rows_skipped"] < 1.0
    silent = [run.state.log_history[0]["frac_reward_zero_std"] for run in (plain, penalised)]
    assert silent == [1.0, 0.0]
    assert penalised.state.log_history[0]["rewards/soft_overlong"] < 0
    assert gradients[0].norm() > 0


def test_silent_groups_are_counted_where_rewards_are_normalised_apart(tmp_path):
    def first_group(completion_ids, **_):
        return [float(i) if i < 4 else 0.0 for i in range(len(completion_ids))]

    apart = {"multi_objective_aggregation": "normalize_then_sum"}
    trainer, _ = recorded(tmp_path, rewards=first_group, **apart)
    log = trainer.state.log_history[0]
    assert log["frac_reward_zero_std"] == log["update/rows_skipped"] == 0.5


def test_dynamic_sampling_replaces_silent_groups(tmp_path):
    def rare(completion_ids, **_):
        return [float(ids[0] % 7 == 0) for ids in completion_ids]

    settings = {"rewards": rare, "data": prompts(32), "per_device_train_batch_size": 16}
    plain, _ = recorded(tmp_path, **settings)
    full, _ = recorded(tmp_path, dynamic_sampling=True, max_resample_times=20, **settings)
    bounded, _ = recorded(tmp_path, dynamic_sampling=True, max_resample_times=0, **settings)
    assert plain.state.log_history[0]["update/rows_skipped"] > 0
    log = full.state.log_history[0]
    assert log["dynamic_sampling/groups_missing"] == 0 and log["dynamic_sampling/rounds"] > 0
    assert log["update/rows_skipped"] == 0
    assert bounded.state.log_history[0]["dynamic_sampling/groups_missing"] > 0


def test_dynamic_sampling_replaces_groups_whose_completions_are_all_masked(tmp_path):
    """Their rewards differ, but they train nothing."""
    settings = {"mask_truncated_completions": True, "dynamic_sampling": True}
    trainer = build(tmp_path, max_resample_times=2, **settings)
    make, made = trainer.rollouts.make, []
    trainer.rollouts.make = lambda batch: made.append(make(batch)) or made[-1]
    trainer.train()
    (rollout,) = made
    trained = rollout["completion_mask"].any(1) & (rollout["advantages"] != 0)
    silent = int((~trained.view(-1, trainer.num_generations).any(1)).sum())
    log = trainer.state.log_history[0]
    assert log["dynamic_sampling/groups_missing"] == silent == 0 < log["dynamic_sampling/rounds"]


def test_every_round_has_the_columns_of_the_first(tmp_path):
    seen = []

    def keep(completion_ids, **columns):
        seen.append(set(columns))
        return [0.0] * len(completion_ids)

    for removes in (True, False):
        seen.clear()
        recorded(tmp_path, rewards=keep, dynamic_sampling=True, remove_unused_columns=removes)
        assert len(seen) == 4 and all(columns == seen[0] for columns in seen)
        assert ("answer" in seen[0]) != removes


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"num_iterations": 2},
        {"num_iterations": 2, "method": "8020"},
        *({"method": method} for method in ("8020", "gtpo_entropy", "gtpo")),
    ],
)
def test_broken_logits_skip_steps_and_then_stop(tmp_path, more):
    class Breaks(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, **_):
            with torch.no_grad():
                model.model.norm.weight[0] = torch.nan

    model = tiny_model(tied=False)
    before = model.lm_head.weight.detach().clone()
    settings = {"rollout_func": fixed_rollout, "max_steps": 4, "max_nonfinite_steps": 2, **more}
    with pytest.raises(NonFiniteError, match=r"max_nonfinite_steps=2: the loss was not finite"):
        recorded(tmp_path, model, callbacks=[Breaks()], **settings)
    assert torch.equal(model.lm_head.weight, before)


def test_broken_weights_are_told_at_construction(tmp_path):
    model = tiny_model(tied=False)
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    with pytest.raises(ACPOError, match=r"logits that are not finite on 8 tokens"):
        build(tmp_path, model=model)


def test_broken_gradients_skip_steps_and_then_stop(tmp_path):
    trainer = build(tmp_path, max_steps=6, max_nonfinite_steps=3)
    before = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    step = trainer.training_step

    def poisoned(model, *args, **kwargs):
        loss = step(model, *args, **kwargs)
        if trainer.state.global_step != 1:
            model.model.norm.weight.grad[0] = torch.nan
        return loss

    trainer.training_step = poisoned
    with pytest.raises(ACPOError, match=r"not finite for 3 steps in a row.*lower learning_rate"):
        trainer.train()
    assert trainer.state.global_step == 4 and trainer.guard.total == 4
    moved = [k for k, v in trainer.model.state_dict().items() if not torch.equal(v, before[k])]
    assert moved and all(torch.isfinite(v).all() for v in trainer.model.state_dict().values())
