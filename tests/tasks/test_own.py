"""Tasks and graders of the user's own, and reasoning-gym's, in every command that takes a task."""

import dataclasses
import json
import os
import time
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet
from typer.testing import CliRunner

from acpo.cli import app
from acpo.compare.execute import execute
from acpo.compare.plan import study_runs
from acpo.compare.study_file import read_study
from acpo.engines.trl.rewards import checked_reward
from acpo.errors import ACPOError
from acpo.records import Trace
from acpo.tasks import Outcome, Task, get_task, reward_function
from acpo.tasks.grading import ROW, Judges, gold_completion, vote
from acpo.tasks.gym import extract
from acpo.tasks.problems import endless_problems
from acpo.tasks.questions import load_questions
from acpo.train.launch import prepare
from acpo.train.recipe import read_recipe
from train.standin import flags, save_standin

HERE = Path(__file__).parent
COUNTDOWN = f"{HERE / 'countdown.py'}:countdown"
RECIPE = HERE.parents[1] / "recipes" / "gym-countdown.yaml"
GYM = "gym:countdown?min_numbers=3&max_numbers=3"


def acpo(*arguments, status=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == status, result.output
    return " ".join(result.output.split())


def verdicts(task, *pairs):
    with Judges(1) as judges:
        return [judges.verify(task, text, row).result() for text, row in pairs]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_standin(tmp_path_factory.mktemp("model"), chat=False)


def small(model, out):
    """Options that shrink a recipe to this machine."""
    options = {"model_name_or_path": model, "output_dir": out, "use_cpu": True, "bf16": False}
    options |= {"generation_batch_size": 16, "per_device_train_batch_size": 4, "max_steps": 1}
    options |= {"gradient_accumulation_steps": 2, "max_completion_length": 8}
    return options | {"held_out": 4, "per_device_eval_batch_size": 4, "save_strategy": "no"}


def test_it_is_25_lines():
    lines = (HERE / "countdown.py").read_text().split("import", 1)[1].splitlines()
    assert len([line for line in lines if line.strip()]) <= 25


def test_a_boxed_target_is_no_solution():
    task = get_task(COUNTDOWN)
    row = {"numbers": [2, 3, 4], "target": 10}
    found = verdicts(task, ("2*3+4", row), ("\\boxed{10}", row), ("2*5", row), ("4+3*2", row))
    assert [verdict.correct for verdict in found] == [True, False, False, True]


def test_train_doctor_eval_and_trace_take_it(model, tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        RECIPE.read_text().replace(yaml.safe_load(RECIPE.read_text())["task"], COUNTDOWN)
    )
    said = acpo("doctor", recipe, *flags(**small(model, tmp_path / "run")))
    assert "2 of 2 gold answers earn a reward" in said and "ready to train" in said
    said = acpo("train", recipe, *flags(**small(model, tmp_path / "run")))
    assert "accuracy on 4 held-out problems" in said
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["problems"] == 4 and report["model"] == model
    options = ("--prompt-format", "plain", "--max-tokens", 8, "--device", "cpu", "--workers", 1)
    run = ("eval", tmp_path / "run", "--benchmarks", COUNTDOWN, *options)
    acpo(*run, "--limit", 3, "--output", tmp_path / "eval")
    lines = [json.loads(line) for line in (tmp_path / "eval" / "countdown.jsonl").open()]
    assert len(lines) == 7 and {line["verdict"] for line in lines[1:]} == {"incorrect"}
    acpo(*run, "--limit", 4, "--output", tmp_path / "eval")  # more of the same stream
    acpo(
        *("trace", model, "--task", COUNTDOWN, "--n", 2, "--group", 2, "--max-tokens", 8),
        *("--device", "cpu", "--output", tmp_path / "trace"),
    )
    assert set(Trace.open(tmp_path / "trace").rollouts["verdict"].to_pylist()) == {"incorrect"}


def test_compare_takes_it(model, tmp_path):
    study = {"recipe": str(RECIPE), "updates": 2, "seeds": [0, 1], "methods": ["sapo", "acpo"]}
    options = {"task": COUNTDOWN, "logging_steps": 1, "num_generations_eval": 2, "dtype": "float32"}
    study["options"] = {**small(model, tmp_path / "x"), **options}
    for decided in ("output_dir", "max_steps"):
        del study["options"][decided]
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(study))
    read = read_study(file)
    run = next(study_runs(read, read.tasks[0], read.tasks[0].rows[0], None))
    result = execute(run, tmp_path / "out", threads=1)
    assert result["failed"] is None and result["accuracy"]["problems"] == 4


def test_a_task_made_in_memory_says_what_to_do():
    task = Task(problems=[{"n": 1}], template="{n}", grader=lambda completion, row: True, name="t")
    with pytest.raises(ACPOError, match=r"get_task\('my_tasks.py:NAME'\)"):
        reward_function(task)(["?"], ["x"], **{ROW: ["{}"]})
    here = Task(**{**vars(task), "in_process": True})
    assert reward_function(here)(["?"], ["x"], **{ROW: ["{}"]}) == [1.0]


def test_tasks_made_in_memory_share_no_grader():
    """Whether or not their graders are equal, or can be hashed, or a pool has their name."""

    @dataclasses.dataclass
    class Table:
        right: dict = dataclasses.field(compare=False)

        def __call__(self, completion, row):
            return self.right[completion]

    with Judges(1) as judges:
        for right in (True, False):
            task = Task(grader=Table({"x": right}), in_process=True, name="t")
            assert judges.verify(task, "x", {}).result().correct is right
        assert judges.verify(get_task("math"), "\\boxed{1}", {"answer": "1"}).result().correct
        for name in ("t", "math"):
            with pytest.raises(ACPOError, match="made in memory"):
                judges.prepare(dataclasses.replace(task, in_process=False, name=name))


def test_a_changed_grader_does_not_keep_old_verdicts(model, tmp_path):
    file = tmp_path / "own.py"
    text = "from acpo.tasks import Task\nt = Task(problems=[{'n': 1}, {'n': 2}], template='{n}', "
    file.write_text(text + "grader=lambda completion, row: True)\n")
    run = ("eval", model, "--benchmarks", f"{file}:t", "--prompt-format", "plain", "--k", 1)
    run += ("--max-tokens", 2, "--device", "cpu", "--workers", 1, "--output", tmp_path / "run")
    assert "100.0" in acpo(*run)
    file.write_text(text + "grader=lambda completion, row: False)\n")
    from acpo.tasks import registry

    registry._FILES.clear()
    assert "judge_identity" in acpo(*run, status=2)


def test_endless_problems_are_fresh_and_held_out_ones_stay_out():
    task = get_task(COUNTDOWN)
    first = [problem.text for problem in endless_problems(task, 50, seed=1000)]
    again = [problem.text for problem in endless_problems(task, 60, seed=1000, exclude=first[:5])]
    assert len(set(first)) == 50 and again[:45] == first[5:] and not set(first[:5]) & set(again)
    few = Task(problems=lambda seed: ({"n": i % 3} for i in range(10**6)), template="{n}")
    few = Task(**{**vars(few), "grader": bool, "reference": "few"})
    with pytest.raises(ACPOError, match="only 3 different problems"):
        endless_problems(few, 4, seed=0)


def test_yaml_entries(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"q": "1+1?", "gold": "2", "extra": 7}\n')
    (tmp_path / "g.py").write_text("def grade(completion, row):\n    return row['extra'] == 7\n")
    entry = {"problems": "p.jsonl", "template": "Q: {q}", "grader": "g.py:grade"}
    entries = {
        "mine": entry,
        "math": {"problems": "p.jsonl", "columns": {"problem": "q", "answer": "gold"}},
        "gym": {"gym": "countdown", "operators": ["+", "-"]},
        "bad": {**entry, "promt": "x"},
        "few": {**entry, "k": "x"},
        "half": {**entry, "k": 2.5},
        "a/b": entry,
        "worse": {**entry, "grader": "g.py:none"},
        "number": {**entry, "template": 5},
        "asked": {**entry, "test_template": 5},
        "rows": {**entry, "problems": 5},
        "form": {**entry, "columns": {"problem": "q", "answer": "gold", "gold": "foo"}},
        "named": {**entry, "columns": {"problem": 1, "answer": "gold"}},
        "game": {"gym": 5},
        "games": {"gym": "countdown", "operators": [["+"]]},
    }
    file = tmp_path / "tasks.yaml"
    file.write_text(yaml.safe_dump(entries))
    asked = load_questions(f"{file}:mine").questions
    assert asked[0].prompt == "Q: 1+1?"
    assert verdicts(get_task(f"{file}:mine"), ("?", asked[0].row))[0].correct
    assert load_questions(f"{file}:math").questions[0].row["answer"] == "2"
    assert "+" in load_questions(f"{file}:gym", limit=1).questions[0].row["answer"] + "+"
    for name, said in (
        ("bad", "'promt' is unknown"),
        ("worse", "has no function 'none'"),
        ("none", "no entry 'none'"),
        ("few", "k='x' must be a positive number"),
        ("half", "k=2.5 must be a positive number without a fraction"),
        ("a/b", "in its name"),
        ("number", "tasks.yaml:number': template=5 must be a text"),
        ("asked", "test_template=5 must be a text"),
        ("rows", "problems=5: use a file"),
        ("form", "gold='foo'.* gold is one of text, boxed"),
        ("named", "problem=1.* use Columns"),
        ("game", "gym=5 must be the name"),
        ("games", "must be numbers, texts or lists"),
    ):
        with pytest.raises(ACPOError, match=said):
            get_task(f"{file}:{name}")
    file.write_text("t: {problems: p.jsonl}\nu: {problems: p.jsonl}\nt: {problems: q.jsonl}\n")
    with pytest.raises(ACPOError, match=r"tasks.yaml:3: 't' is given twice"):
        get_task(f"{file}:u")
    with pytest.raises(ACPOError, match=r"no file '.*none.yaml'"):
        get_task(f"{tmp_path / 'none.yaml'}:t")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = (\n", r"own.py:1: SyntaxError"),
        ("import os\n\n1 / 0\n", r"own.py:3: ZeroDivisionError"),
        ("t = 3\n", "t is int"),
        ("from acpo.tasks import Task\nt = Task(grader='maths')\n", "grader='maths'"),
        ("def t(size):\n    return 3\n", "missing 1 required positional argument: 'size'"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(tmp_path, text, said):
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(ACPOError, match=said) as caught:
        get_task(f"{tmp_path / 'own.py'}:t")
    assert "\n" not in str(caught.value)


HOSTILE = """
import os, time
from acpo.tasks import Task

def grade(completion, row):
    return eval(completion)

t = Task(problems=[{"n": 1}], template="{n}", grader=grade, cpu_seconds=0.5)
"""


def test_graders_are_killed_and_confined(tmp_path):
    """A grader that evaluates what it is given cannot be made to hang, to grow or to do harm."""
    (tmp_path / "own.py").write_text(HOSTILE)
    task = get_task(f"{tmp_path / 'own.py'}:t")
    harm = tmp_path / "harm"
    attacks = {
        "len([i for i in iter(int, 1)])": Outcome.TIMEOUT,
        "bytearray(1 << 40)": Outcome.LIMIT,
        "os._exit(3)": Outcome.LIMIT,
        "os._exit(0)": Outcome.LIMIT,
        f"os.system('touch {harm}') == 0": Outcome.INCORRECT,
    }
    refused = (
        f"open({str(harm)!r}, 'w')",
        f"os.mkdir({str(harm)!r})",
        f"os.kill({os.getpid()}, 15)",
        "__import__('socket').socket()",
        "os.fork()",
        "__import__('subprocess').run(['true'])",
    )
    start = time.monotonic()
    with Judges(1) as judges:
        for text, outcome in attacks.items():
            assert judges.verify(task, text, {}).result().outcome is outcome, text
        for text in refused:
            with pytest.raises(ACPOError, match=r"own.py:6: PermissionError"):
                judges.verify(task, text, {}).result()
        assert judges.verify(task, "1 + 0", {}).result().correct, "it goes on"
        assert judges.verify(task, "len(open(__file__).read()) > 0", {}).result().correct
    assert not harm.exists() and time.monotonic() - start < 60


def test_a_graders_own_mistake_names_its_line(tmp_path):
    (tmp_path / "own.py").write_text(HOSTILE.replace("eval(completion)", "row['gold']"))
    task = get_task(f"{tmp_path / 'own.py'}:t")
    with pytest.raises(ACPOError, match=r"its grader raised at .*own.py:6: KeyError: 'gold'"):
        verdicts(task, ("x", {"n": 1}))


@pytest.mark.parametrize("here", [False, True])
def test_a_grader_that_returns_nothing_is_not_told_to(tmp_path, here):
    """Nor is one that raises: for a task's grader the remedy is its own, and the line is named."""
    text = "from acpo.tasks import Task\n\n\ndef grade(completion, row):\n    return row.get('n')\n"
    text += f"\n\nt = Task(grader=grade, in_process={here})\n"
    (tmp_path / "own.py").write_text(text)
    reward = checked_reward(reward_function(get_task(f"{tmp_path / 'own.py'}:t")))
    assert reward(prompts=["?"], completions=["x"], **{ROW: ['{"n": 1}']}) == [1.0]
    with pytest.raises(ACPOError, match=r"^task='.*own.py:t': a grader returned None; .*Verdict$"):
        reward(prompts=["?"], completions=["x"], **{ROW: ["{}"]})
    with pytest.raises(ACPOError, match=r"^task='.*its grader raised at .*own.py:5: AttributeErr"):
        reward(prompts=["?"], completions=["x"], **{ROW: ["[]"]})


@pytest.mark.parametrize(
    ("problems", "said"),
    [
        ("lambda seed: 5", r"problems\(7\) returned 5; return rows"),
        ("lambda: 5", r"its problems\(seed\) raised at .*own.py:2: TypeError: .* 0 positional"),
        ("lambda seed: [5]", "its problems gave 5; each must be a mapping"),
        ("lambda seed: ({'n': 1 / n} for n in (1, 0))", "own.py:2: ZeroDivisionError"),
    ],
)
def test_problems_that_cannot_be_made_are_one_line(tmp_path, problems, said):
    task = f"t = Task(problems={problems}, template='{{n}}', grader=lambda completion, row: True)\n"
    (tmp_path / "own.py").write_text("from acpo.tasks import Task\n" + task)
    with pytest.raises(ACPOError, match=f"task='.*own.py:t': .*{said}"):
        endless_problems(get_task(f"{tmp_path / 'own.py'}:t"), 2, seed=7)


def test_gold_and_extract_that_raise_are_one_line(tmp_path):
    text = "from acpo.tasks import Task\nt = Task(grader=lambda completion, row: True,\n"
    text += "         extract=lambda text: int(text),\n         gold=lambda row: row['gold'])\n"
    (tmp_path / "own.py").write_text(text)
    task = get_task(f"{tmp_path / 'own.py'}:t")
    assert gold_completion(task, {"gold": "x"}) == "x" and vote(task, "07") == "7"
    with pytest.raises(ACPOError, match=r"its gold\(row\) raised at .*own.py:4: KeyError: 'gold'"):
        gold_completion(task, {})
    with pytest.raises(ACPOError, match=r"gold\(row\) returned 5; return"):
        gold_completion(task, {"gold": 5})
    with pytest.raises(ACPOError, match=r"its extract\(completion\) raised at .*own.py:3: Value"):
        vote(task, "x")


gym = pytest.importorskip("reasoning_gym")


def test_gym_problems_are_endless_and_seeds_apart():
    task = get_task(GYM)
    held = {problem.text for problem in endless_problems(task, 20, seed=task.held_out_seed)}
    other = {one.prompt for one in load_questions(f"{GYM}&seed=2", limit=20).questions}
    train = {problem.text for problem in endless_problems(task, 200, seed=1000)}
    far = endless_problems(task, 1, seed=1000 + 123_456_789)[0].row["gym"]
    assert 1000 * 10**6 <= far < 2**32
    assert len(train) == 200 and not held & train and not held & other
    assert load_questions(GYM, limit=5).checksum == load_questions(GYM, limit=20).checksum
    assert (
        load_questions(GYM, limit=5).checksum != load_questions(f"{GYM}&seed=2", limit=5).checksum
    )


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("<answer>1</answer> or rather <answer> 2\n</answer>.", "2"),
        ("<answer>1</answer> and </answer>", "1"),
        ("<answer>1</answer> and <answer>2", "1"),
        ("<answer>I think <answer>2</answer>", "2"),
        ("<answer></answer>", ""),
        ("</answer>1<answer>", None),
        ("</answer>", None),
        ("<answer>1", None),
        ("1", None),
    ],
)
def test_gym_answers_stand_between_the_last_tags(completion, answer):
    assert extract(completion) == answer


@pytest.mark.parametrize("unit", ["<answer>", "</answer>", "<answer> </answer"])
def test_gym_answers_are_found_in_linear_time(unit):
    start = time.process_time()
    assert extract(unit * 10**5) is None
    assert time.process_time() - start < 1.0


def test_gym_scores_with_its_own_scorer_in_a_process_apart(tmp_path):
    harm = tmp_path / "harm"
    task = dataclasses.replace(get_task(GYM), cpu_seconds=1.0)
    question = load_questions(GYM, limit=1).questions[0]
    gold = question.row["answer"]
    evil = f"__import__('os').system('touch {harm}')"
    texts = [f"so <answer>{gold}</answer>", gold, "<answer>1</answer>", f"<answer>{evil}</answer>"]
    texts += ["<answer>9**9**9**9</answer>"]
    found = verdicts(task, *((text, question.row) for text in texts))
    assert [verdict.correct for verdict in found] == [True, False, False, False, False]
    assert found[-1].outcome in (Outcome.TIMEOUT, Outcome.LIMIT, Outcome.INCORRECT)
    assert not harm.exists()
    reward = reward_function(task)
    row = json.dumps(question.row)
    assert reward(["?"] * 2, [texts[0], texts[2]], **{ROW: [row, row]}) == [1.0, 0.0]
    assert reward.__name__ == "countdown_reward"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gym:countdwn", "did you mean 'countdown'"),
        ("gym:countdown?min_number=3", "has no setting 'min_number'"),
        ("gym:countdown?min_numbers=9&max_numbers=3", "is refused"),
        ("gym:countdown?seed=1000", "seed=1000 must be"),
        ("gym:countdown?min_numbers", "is not KEY=VALUE"),
        ("aime24?k=3", "takes no settings"),
        ("problems.jsonl?k=3", "a file takes no settings; leave out \\?k=3"),
        ("tasks.yaml:mine?k=3", "a file takes no settings"),
        ("chain?steps=two", "it takes steps=N"),
    ],
)
def test_settings_that_do_not_fit(name, said):
    with pytest.raises(ACPOError, match=said):
        get_task(name)


def test_without_reasoning_gym_the_remedy_is_named(monkeypatch):
    import sys

    from acpo.tasks.gym import dataset

    dataset.cache_clear()
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(ACPOError, match="pip install 'reasoning-gym"):
        get_task("gym:countdown")


def test_the_recipe_trains_on_problems_that_never_repeat(model, tmp_path):
    options = {**small(model, tmp_path / "run"), "max_steps": 3, "max_completion_length": 40}
    run = prepare(read_recipe(RECIPE, flags(**options)))
    # 3 updates take 2 rollouts of 2 problems
    assert len(set(run.data.train["prompt"])) == 4 and len(run.data.held_out) == 4
    run.trainer.train()
    assert run.trainer.state.global_step == 3
    with pytest.raises(ACPOError, match="never runs out of problems: set max_steps"):
        prepare(read_recipe(RECIPE, flags(**{**options, "max_steps": -1})))


def test_show():
    said = acpo("data", "show", GYM, "--n", 2)
    assert said.count("-> correct") == 2 and said.count("-> incorrect") == 2
    assert "Final answer format" in said


def test_show_of_a_file_and_of_chains(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"problem": "1+1?", "answer": "2"}\n')
    said = acpo("data", "show", tmp_path / "p.jsonl")
    assert "1+1?" in said and "gold: '\\\\boxed{2}' -> correct" in said
    assert acpo("data", "show", "chain").count("-> correct") == 3
    assert "did you mean 'gsm8k'" in acpo("data", "show", "gsm8", status=2)


def test_a_grader_gets_dates_and_decimals_as_text(tmp_path, monkeypatch):
    rows = [{"problem": "1+1?", "day": datetime(2024, 5, 1), "share": Decimal("0.5"), "raw": b"x"}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "dated.parquet")
    (tmp_path / "g.py").write_text(
        "def grade(text, row):\n"
        "    return (row['day'][:4], row['share'], text) == ('2024', '0.5', '2')\n"
    )
    (tmp_path / "t.yaml").write_text("dated: {problems: dated.parquet, grader: g.py:grade}\n")
    monkeypatch.chdir(tmp_path)
    row = load_questions("t.yaml:dated").questions[0].row
    judged = verdicts(get_task("t.yaml:dated"), ("2", row), ("3", row))
    assert [verdict.correct for verdict in judged] == [True, False]
    assert "1+1?" in acpo("data", "show", "t.yaml:dated")
