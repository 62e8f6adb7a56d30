from pathlib import Path

import pytest

from acpo.errors import ACPOError
from acpo.objectives import METHODS
from acpo.train.plan import plan_batches, training_bytes
from acpo.train.recipe import read_recipe
from train.standin import flags

RECIPES = Path(__file__).parents[2] / "recipes"
PAPER = sorted((RECIPES / "paper").glob("*.yaml"))
ROWS = ("grpo", "dapo", "8020", "gtpo", "sapo", "acpo_no_routing", "acpo")
CPU = flags(use_cpu=True)


def write(path, text):
    path.write_text(text)
    return path


MINIMAL = "model_name_or_path: m\nuse_cpu: true\n"


def test_yaml_overrides_and_every_grpo_option(tmp_path):
    recipe = write(tmp_path / "mine.yaml", MINIMAL + "learning_rate: 1e-5\nmethod: sapo\n")
    plain = read_recipe(recipe)
    assert (plain.config.learning_rate, plain.config.method) == (1e-5, "sapo")
    assert str(plain.output_dir) == "runs/mine"
    assert "learning_rate" in plain.given
    assert "temperature" not in plain.given
    changed = read_recipe(
        recipe,
        ["--learning_rate", "2e-5", "--num-generations=4", "--output_dir", "x", "--chat", "false"],
    )
    assert changed.config.learning_rate == 2e-5
    assert changed.config.num_generations == 4
    assert str(changed.output_dir) == "x"
    assert changed.task.chat is False
    named = read_recipe(recipe, ["--method", "8020", "--output_dir", "x"])
    assert str(named.output_dir) == "x"
    assert "num_generations" in changed.given


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        (MINIMAL + "lerning_rate: 1\n", [], "did you mean learning_rate"),
        (MINIMAL, ["--metod", "acpo"], "did you mean method"),
        (MINIMAL, ["--method", "acop"], "did you mean 'acpo'"),
        ("model: m\n", [], r"bad.yaml: model is not an option; did you mean model_name_or_path\?"),
        (MINIMAL, ["--dataset-name", "d"], r"--dataset-name is not .*; did you mean data\?"),
        (MINIMAL, ["--lr", "1"], r"did you mean learning_rate\?"),
        (MINIMAL, ["max_steps", "3"], r"'max_steps' is .* no option; did you mean --max_steps 3\?"),
        (MINIMAL, ["max_steps=3"], r"did you mean --max_steps 3\?"),
        (MINIMAL, ["--seed", "1", "2"], "'2' is the value of no option; options come as --key"),
        (f"{MINIMAL}max_steps: 010\n", [], "010 is not the number it looks like"),
        (f"{MINIMAL}max_steps: 1:30\n", [], "1:30 is not the number it looks like"),
        (f"{MINIMAL}temperature: 1:30.5\n", [], "1:30.5 is not the number it looks like"),
        (f"{MINIMAL}max_steps: 0x10\n", [], "0x10 is not the number it looks like"),
        (MINIMAL, ["--max_steps", "1", "--max-steps=2"], "--max_steps is given twice; keep one"),
        (MINIMAL, ["--output_dir", ""], "--output_dir is empty; give a value"),
        (MINIMAL, ["--output_dir="], "--output_dir is empty; give a value"),
        (MINIMAL, ["--output_dir"], "output_dir"),
        (MINIMAL, ["--save_strategy", ""], "--save_strategy='' is unknown; use one of no, steps"),
        (MINIMAL, ["--learning_rate", "fast"], "invalid float value"),
        (MINIMAL, ["--num_generations", "1"], "at least 2"),
        (
            MINIMAL + "reward_weights: 1.0\n",
            [],
            r"reward_weights=1.0 must be a list, as in \[1.0\]",
        ),
        ("- a\n- b\n", [], "a recipe is a mapping"),
        ("a: [\n", [], "2: not plain YAML"),
        ("run_name: 2024-13-01\n", [], "1: not plain YAML: a timestamp"),
        ("a: " + "[" * 5000, [], "not plain YAML"),
        ("method: acpo\nuse_cpu: true\n", [], "model_name_or_path is missing"),
    ],
)
def test_mistakes_are_named(tmp_path, text, overrides, message):
    with pytest.raises(ACPOError, match=message):
        read_recipe(write(tmp_path / "bad.yaml", text), overrides)


def test_a_recipe_in_another_encoding_is_told(tmp_path):
    (tmp_path / "bad.yaml").write_bytes(MINIMAL.encode() + b"# caf\xe9\n")
    with pytest.raises(ACPOError, match=r"bad.yaml:\d+: not UTF-8: byte 0xe9"):
        read_recipe(tmp_path / "bad.yaml")


def test_what_others_call_an_option_is_none_here_and_means_one():
    from acpo.train.recipe import ELSEWHERE, option_groups

    known = {name for rows in option_groups().values() for name, _ in rows}
    assert not known & ELSEWHERE.keys()
    assert known >= set(ELSEWHERE.values())


def test_options_of_several_values(tmp_path):
    overrides = ["--reward_weights", "1", "-0.5", "--seed=7", "--reward_funcs", "a.f", "b.g"]
    recipe = read_recipe(write(tmp_path / "mine.yaml", MINIMAL), overrides)
    assert (recipe.config.reward_weights, recipe.config.seed) == ([1.0, -0.5], 7)
    assert recipe.task.reward_funcs == ["a.f", "b.g"]
    with pytest.raises(ACPOError, match="'b' is the value of no option"):
        read_recipe(write(tmp_path / "mine.yaml", MINIMAL), ["--reward_funcs=a", "b"])


@pytest.mark.parametrize("row", METHODS)
def test_every_recipe_trains_every_row(tmp_path, row):
    recipe = write(tmp_path / "mine.yaml", MINIMAL + "method: acpo\n")
    config = read_recipe(recipe, ["--method", row]).config
    assert config.objective.name == row


def test_options_of_a_row_on_the_command_line(tmp_path):
    recipe = write(tmp_path / "mine.yaml", MINIMAL)
    options = ["--method", "simko", "--method_options", '{"alpha": 0.02, "candidates": 5}']
    method = read_recipe(recipe, options).config.objective
    assert (method.options["alpha"], method.candidates) == (0.02, 5)


def test_options_that_are_said_in_other_ways(tmp_path):
    """PEFT would take the letters of a text for names of modules."""
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "model_name_or_path: x\ntask: chain\nuse_peft: true\nlora_modules_to_save: lm_head\n"
        "resume_from_checkpoint: true\n"
        "model_init_kwargs: {revision: v2, torch_dtype: bfloat16}\n"
    )
    model = read_recipe(path).model
    assert model.lora_modules_to_save == ["lm_head"]
    assert (model.model_revision, model.dtype) == ("v2", "bfloat16")


def test_one_reward_needs_no_brackets(tmp_path):
    recipe = write(tmp_path / "one.yaml", MINIMAL + "reward_funcs: my_rewards.exact\n")
    assert read_recipe(recipe).task.reward_funcs == ["my_rewards.exact"]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("path", PAPER, ids=lambda path: path.stem)
def test_the_papers_grid(path, row):
    """One recipe per model, which trains every row of the paper, each into a folder of its own."""
    recipe = read_recipe(path, [*CPU, "--method", row], processes=8)
    assert recipe.config.objective == METHODS[row]
    assert str(recipe.output_dir) == f"runs/{path.stem}-{row}"
    plan = plan_batches(recipe, problems=17_243)
    assert (plan.rollout, plan.prompts, plan.per_update) == (1024, 128, 128)
    assert plan.updates_per_rollout == 8
    assert (plan.rollouts, plan.updates) == (134, 134 * 8)
    assert recipe.config.max_completion_length == 8192
    assert (recipe.config.beta, recipe.config.temperature) == (0.0, 1.0)


def test_plan_from_steps_per_generation():
    recipe = read_recipe(RECIPES / "quickstart.yaml", processes=2)
    plan = plan_batches(recipe, problems=20_000)
    assert (plan.rollout, plan.prompts, plan.per_update) == (1024, 128, 512)
    assert plan.updates_per_rollout == 2
    assert plan.epochs == pytest.approx(plan.rollouts * 128 / 20_000)
    twice = read_recipe(RECIPES / "quickstart.yaml", flags(num_iterations=3))
    assert plan_batches(twice, problems=20_000).updates_per_rollout == 6


def test_training_bytes():
    assert training_bytes(100, dtype="float32", shards=1) == 1600
    assert training_bytes(100, dtype="bfloat16", shards=4) == 200


def test_accelerate_reads_the_sharding():
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(RECIPES / "accelerate" / "fsdp2.yaml"))
    assert config.num_processes == 8
    assert config.fsdp_config["fsdp_version"] == 2
