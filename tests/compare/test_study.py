"""Study files: what the repository ships is sound, and what cannot be run is refused by line."""

import json
import math
from pathlib import Path

import pytest

from acpo.compare.plan import start_runs, study_runs, sweep_runs
from acpo.compare.runner import parse_overrides
from acpo.compare.store import read_results
from acpo.compare.study_file import read_study
from acpo.errors import ACPOError
from acpo.objectives import METHODS
from acpo.objectives.published import PUBLISHED
from acpo.train.recipe import read_recipe

STUDIES = Path(__file__).parents[2] / "recipes" / "studies"
REDUCED = (
    *(f"qwen2.5-0.5b-{of}" for of in ("arithmetic", "chain-sum", "gsm8k-slow")),
    *("law-10m", "law-long"),
)
"""Confirmations of another study with fewer rows."""

BOMB = "options: {{{}}}\n".format(
    ", ".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}' if n else '0'] * 9)}]" for n in range(7))
)
SOUND = """\
recipe: recipe.yaml
methods: [sapo, grpo]
updates: 4
seeds: [0, 1]
sweep:
  learning_rates: [1.0e-3, 1.0e-4]
  seeds: [7]
"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "recipe.yaml").write_text(
        "model_name_or_path: x\ntask: chain\nheld_out: 8\nlogging_steps: 1\n"
    )

    def write(text):
        path = tmp_path / "study.yaml"
        path.write_text(text)
        return path

    return write


def test_no_launcher_may_be_said(write):
    assert read_study(write(SOUND + "launcher: ''\n")).launcher == ""


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_studies_are_sound(path, tmp_path):
    study = read_study(path)
    assert path.stem in REDUCED or "global_sg_x3" in [row.name for row in study.tasks[0].rows]
    for task in study.tasks:
        names = [row.name for row in task.rows]
        assert {"sapo", "acpo"} <= set(names)
        runs = [run for row in task.rows for run in study_runs(study, task, row, 1e-5)]
        assert len({run.name for run in runs}) == len(task.rows) * len(task.seeds)
        for run in (runs[0], next(start_runs(study, task)), *list(sweep_runs(study, task, {}))[:1]):
            options = {**run.recipe, "bf16": False, "use_vllm": False, "use_cpu": True}
            recipe = tmp_path / "recipe.yaml"
            recipe.write_text(str(options).replace("None", "null"))
            config = read_recipe(recipe, ["--output_dir", str(tmp_path)]).config
            assert config.method == run.recipe["method"] and config.max_steps >= 1


def test_tiny_has_every_published_row_and_enough_seeds():
    study = read_study(STUDIES / "tiny.yaml")
    task = study.tasks[0]
    names = [row.name for row in task.rows]
    assert sorted(names) == sorted(METHODS.keys() - {"score_normalised", "score_baseline"})
    later = {row.name for row in PUBLISHED}
    sweeps = list(sweep_runs(study, task, {}))
    runs = [run for row in task.rows for run in study_runs(study, task, row, 1e-5)]
    counts = [sum(run.row in later for run in part) for part in (sweeps, runs)]
    assert counts == [120, 120] and len([*sweeps, *runs, *start_runs(study, task)]) == 584
    assert len(study.tasks[0].seeds) >= 5
    assert study.options["steps_per_generation"] == 8


def test_control_and_baseline_join_every_study(write):
    study = read_study(write(SOUND.replace("[sapo, grpo]", "[dapo]")))
    assert [row.name for row in study.tasks[0].rows] == ["dapo", "sapo", "global_sg_x3"]


def test_precedence_of_options(write):
    text = SOUND + "options: {temperature: 0.5, top_k: 1}\n"
    text += "tasks:\n  hot: {options: {temperature: 2.0, max_problems: 3}}\n"
    study = read_study(write(text), parse_overrides(["--max-problems", "9"]))
    run = next(sweep_runs(study, study.tasks[0], {}))
    assert run.recipe["temperature"] == 2.0 and run.recipe["top_k"] == 1
    assert run.recipe["max_problems"] == 9
    assert run.recipe["max_steps"] == 4 and run.recipe["seed"] == 7
    assert run.recipe["learning_rate"] == 1e-4, "smallest first"


@pytest.mark.parametrize(
    "merging",
    [
        "tasks:\n  a: {options: &a {temperature: 2.0, top_k: 1}}\n"
        "  b: {options: {<<: *a, top_k: 2}}",
        "tasks:\n  b: {options: {<<: {temperature: 2.0, top_k: 1}, top_k: 2}}",
        "tasks:\n  b: {options: {top_k: 2, <<: [{temperature: 2.0}, {top_k: 1}]}}",
    ],
)
def test_what_a_mapping_merges_it_may_replace(write, merging):
    study = read_study(write(SOUND + merging + "\n"))
    assert dict(study.tasks[-1].options) == {"temperature": 2.0, "top_k": 2}
    with pytest.raises(ACPOError, match=r"^[^:]*study.yaml:\d+: 'top_k' is given twice; keep one$"):
        read_study(write(SOUND + merging.replace("top_k: 2", "top_k: 2, top_k: 2") + "\n"))


BAD = {
    "unknown method": (SOUND.replace("grpo", "grop"), 2, "did you mean 'grpo'"),
    "duplicate row": (SOUND.replace("grpo", "sapo"), 2, "'sapo' is given twice"),
    "duplicate key": (SOUND + "updates: 5\n", 8, "'updates' is given twice"),
    "seeds missing": (SOUND.replace("seeds: [0, 1]\n", ""), 1, "seeds is missing"),
    "no seeds": (SOUND.replace("[0, 1]", "[]"), 4, "must be a list"),
    "seed twice": (SOUND.replace("[0, 1]", "[1, 1]"), 4, "given twice"),
    "budget of zero": (SOUND.replace("updates: 4", "updates: 0"), 3, "at least 1"),
    "budget of words": (SOUND.replace("updates: 4", "updates: many"), 3, "'many'"),
    "unknown option": (SOUND + "sedes: [1]\n", 8, "did you mean 'seeds'"),
    "decided option": (SOUND + "options:\n  seed: 3\n", 9, "decided run by run"),
    "leaking sweep": (SOUND.replace("[7]", "[1]"), 7, "must not see its test"),
    "leaking sweep of an offset": (
        SOUND.replace("grpo", "{name: b, method: grpo, seed_offset: 6}"),
        7,
        "must not see its test",
    ),
    "zero rate": (SOUND.replace("1.0e-3", "0.0"), 6, "above 0"),
    "rate as text": (SOUND.replace("1.0e-3", "1e-3"), 6, "as in 3.0e-4"),
    "recipe gone": (SOUND.replace("recipe.yaml", "gone.yaml"), 1, "not a file"),
    "not a mapping": ("- a\n", 1, "mapping"),
    "not YAML": ("a: [\n", 2, "not plain YAML"),
    "a date": (SOUND + "options: {run_name: 2024-05-01}\n", 8, "a timestamp cannot be"),
    "no date": (SOUND + "title: 2024-13-01\n", 8, "put text in quotes"),
    "odd name": (SOUND.replace("grpo", "{name: ../x, method: grpo}"), 2, "letters"),
    "altered baseline": (SOUND.replace("sapo,", "{method: sapo, options: {beta: 1}},"), 2, "plain"),
    "altered row of the table": (SOUND.replace("grpo", "{name: acpo, method: grpo}"), 2, "plain"),
    "offset as text": (SOUND.replace("grpo", "{name: b, method: grpo, seed_offset: x}"), 2, "'x'"),
    "offset below 0": (SOUND.replace("grpo", "{name: b, method: grpo, seed_offset: -1}"), 2, "-1"),
    "rate twice": (SOUND.replace("1.0e-3", "1.0e-4"), 6, "0.0001 is given twice"),
    "nothing held out": (SOUND + "options: {held_out: 0}\n", 3, "problems kept aside"),
    "nothing logged": (SOUND + "options: {logging_steps: 5}\n", 3, "logs nothing"),
    "nothing logged of a sweep": (
        SOUND + "  updates: 2\noptions: {logging_steps: 3}\n",
        3,
        "a run of 2 updates",
    ),
    "a sweep on held-out problems": (
        SOUND + "options: {task: custom, data: a}\n",
        3,
        "held_out_data",
    ),
    "words for a switch": (SOUND + "keep_models: maybe\n", 8, "true or false"),
    "list for a command": (SOUND + "launcher: [a, b]\n", 8, "a command"),
    "half a quotation": (SOUND + 'launcher: "python \'x"\n', 8, "a command"),
    "matched to nothing": (SOUND + "matched: [grpo, sapo]\n", 8, "'sapo' is no row to match"),
    "matched to lists": (SOUND + "matched: [[a]]\n", 8, "['a'] is no row to match"),
    "matched as words": (SOUND + "matched: some\n", 8, "a list of rows"),
    "pass@k misspelt": (SOUND + "pass_at:\n  problem: 2\n", 9, "did you mean 'problems'"),
    "pass@k of nothing": (SOUND + "pass_at: {problems: 0, samples: 4}\n", 8, "at least 1"),
    "pass@k halved": (SOUND + "pass_at: {problems: 2}\n", 8, "pass_at.samples is missing"),
    "pass@k of more": (SOUND + "pass_at: {problems: 9, samples: 4}\n", 8, "held_out=8"),
    "pass@k that splits": (SOUND + "pass_at: {problems: 8, samples: 3}\n", 8, "divide per_device"),
    "pass@k of batches in words": (
        SOUND + "options: {per_device_eval_batch_size: '8'}\npass_at: {problems: 8, samples: 4}\n",
        9,
        "per_device_eval_batch_size='8'",
    ),
    "one rate to extend": (
        SOUND.replace("1.0e-3, ", "") + "  extend: 1\n",
        8,
        "two learning rates",
    ),
    "a bomb": (SOUND + BOMB, 8, "aliases make more than 100,000 values"),
    "a snake": (SOUND + "options: &a {x: *a}\n", 8, "part of"),
    "decided by its own times": (SOUND + "options: {eval_steps: 3}\n", 8, "decided run by run"),
    "sweep without the row": (
        SOUND + "tasks:\n  a: {}\n  b: {sweep_of: a, methods: [dapo]}\n",
        10,
        "'dapo' is no row of 'a'",
    ),
    "sweep of nothing": (SOUND + "tasks:\n  a: {sweep_of: b}\n", 9, "above this one"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_studies_are_refused_with_the_line(name, write):
    text, line, words = BAD[name]
    path = write(text)
    with pytest.raises(ACPOError) as error:
        read_study(path)
    assert f"{path}:{line}:" in str(error.value)
    assert words in str(error.value)


def test_bad_files_are_refused(write, tmp_path):
    path = write(SOUND)
    (tmp_path / "recipe.yaml").write_text("- a\n")
    with pytest.raises(ACPOError, match=r"recipe.yaml:1: a recipe is a mapping"):
        read_study(path)
    path.write_bytes(b"title: \xff\n")
    with pytest.raises(ACPOError, match=r"study.yaml:1: not UTF-8: byte 0xff at column 8"):
        read_study(path)
    path.write_text("recipe: " + "[" * 5000)
    with pytest.raises(ACPOError, match=r"study.yaml: not plain YAML: maximum recursion"):
        read_study(path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", "[" * 100_000, '{"spec": {"recipe": 3}}'])
def test_a_damaged_result_is_named(write, tmp_path, text):
    study = read_study(write(SOUND))
    run = next(sweep_runs(study, study.tasks[0], {}))
    result = tmp_path / "runs" / run.name / "result.json"
    result.parent.mkdir(parents=True)
    result.write_text(text)
    with pytest.raises(ACPOError, match=r"result.json is .*remove it"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("seconds", None), ("hardware", None), ("accuracy", 0.5), ("accuracy", {"value": "a"})),
        *(("accuracy", {"value": 0.5, "verdicts": 3}), ("pass_at", []), ("step_lengths", ["a"])),
        *(("pass_at", {"value": 0.5, "verdicts": "xx"}), ("curve", [{"step": 1, "delta": 1e300}])),
        *(("curve", [1]), ("curve", [{"accuracy": 0.5}]), ("curve", 3), ("tokens", "a")),
        *(("seconds", math.nan), ("seconds", 10**400), ("accuracy", {"value": math.nan})),
        *(("accuracy", {"value": 50}), ("curve", [{"step": math.nan}]), ("tokens", 10**400)),
        *(("curve", [{"step": 1, "accuracy": 10**400}]), ("step_lengths", [10**400])),
        *(("hardware", {"gpu": "H200\n\n## better: all"}), ("versions", {"torch": ["2"]})),
        *(("hardware", {"cpus": math.nan}), ("held_out", math.nan), ("start_model", ["m"])),
    ],
)
def test_a_damaged_line_is_named(tmp_path, name, value):
    sound = {"run": "a", "spec": {"recipe": {}}, "seconds": 1.0, "hardware": {}, "versions": {}}
    lines = [json.dumps(one) for one in (sound, {**sound, name: value})]
    (tmp_path / "runs.jsonl").write_text("\n".join(lines))
    with pytest.raises(ACPOError, match=rf"runs.jsonl:2 is not .*\({name}=.*remove it"):
        read_results(tmp_path)


def test_numbers_may_name_tasks(write):
    study = read_study(write(SOUND + "tasks:\n  7: {}\n"))
    assert [(task.name, task.sweep_of) for task in study.tasks] == [("7", "7")]


def test_rates_come_from_where_they_are_swept(write):
    text = SOUND + "tasks:\n  a: {}\n  b: {sweep_of: a}\n  c: {sweep_of: b, methods: [grpo]}\n"
    assert [task.sweep_of for task in read_study(write(text)).tasks] == ["a", "a", "a"]


def test_bad_overrides():
    for arguments in (
        *(["--seed", "3"], ["beta"], ["--beta"], ["--beta", "0", "--beta", "0.1"]),
        *(["--eval_steps", "5"], ["--system_prompt", "a: b: c"], ["--run_name", "2024-05-01"]),
    ):
        with pytest.raises(ACPOError):
            parse_overrides(arguments)
