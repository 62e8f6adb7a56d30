"""`code_correct` as a trainer calls it: without the `prompt` column, with all the others."""

import json
import shutil

import pytest
from datasets import Dataset

from acpo import ACPOConfig, ACPOTrainer
from acpo.errors import ACPOError
from acpo.train.data import build_data
from acpo.train.recipe import TaskArguments
from acpo.verify.rewards import code_correct, math_correct
from conftest import require_tool
from tasks.tiny import tiny_model
from train.standin import ascii_tokenizer
from verify.humaneval import own_problems, shapes, shared_problems

ASKED = "Complete this function:\n\n```python\n{}```\n\nAnswer with Python code."


def trainer(folder, data, rewards, *, chat=False):
    tokenizer = ascii_tokenizer(chat)
    config = ACPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=8,
        use_cpu=True,
        report_to=[],
    )
    model = tiny_model(len(tokenizer), hidden_size=32, layers=1, seed=5)
    model.config.max_position_embeddings = 1 << 15
    return ACPOTrainer(model, rewards, config, data, processing_class=tokenizer)


SHAPES = ("body", "function", "program")


def earned(built, rows, texts) -> int:
    """How many texts earn their 1, by TRL's own way of calling rewards."""
    prompts = [row["prompt"] for row in rows]
    chat = [[{"role": "assistant", "content": text}] for text in texts]
    given = texts if isinstance(prompts[0], str) else chat
    values = built._calculate_rewards(rows, prompts, given, [[0]] * len(rows))
    return int((values[:, 0] == 1.0).sum())


def turns(rows):
    """References, each in another shape at every turn; of many problems, one turn."""
    completions = [shapes(row) for row in rows]
    for turn in range(3 if len(rows) < 20 else 1):
        yield [made[SHAPES[(place + turn) % 3]] for place, made in enumerate(completions)]


def problems(request) -> list[dict]:
    require_tool(shutil.which("bwrap") is not None, "bubblewrap")
    if request.param == "own":
        return own_problems()
    return shared_problems(request.getfixturevalue("shared_data"))


humaneval = pytest.fixture(problems, params=["own", pytest.param("shared", marks=pytest.mark.slow)])


@pytest.mark.sandbox
def test_through_the_trainer(tmp_path, humaneval):
    built = trainer(tmp_path, Dataset.from_list(humaneval), code_correct)
    for some in turns(humaneval):
        assert earned(built, humaneval, some) == len(humaneval)
    wrong = [{**row, "canonical_solution": "    return 'no'\n"} for row in humaneval]
    assert earned(built, humaneval, next(turns(wrong))) == 0


@pytest.mark.sandbox
def test_prompts_with_words_around_the_code(tmp_path):
    require_tool(shutil.which("bwrap") is not None, "bubblewrap")
    rows = own_problems()[:4]
    for wrap in (ASKED.format, lambda code: [{"role": "user", "content": f"Go on:\n\n{code}"}]):
        asked = [{**row, "prompt": wrap(row["prompt"])} for row in rows]
        built = trainer(tmp_path, Dataset.from_list(asked), code_correct, chat=True)
        for texts in turns(rows):
            assert earned(built, asked, texts) == len(rows)


@pytest.mark.sandbox
def test_through_a_recipe(tmp_path, humaneval):
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in humaneval))
    arguments = TaskArguments(
        task="custom",
        data=str(file),
        problem_column="prompt",
        answer_column="test",
        template=ASKED.replace("{}", "{problem}"),
        reward_funcs=["acpo.verify.rewards.code_correct"],
    )
    data = build_data(arguments, ascii_tokenizer())
    rows = data.train.to_list()
    assert {name: rows[0][name] for name in humaneval[0] if name != "prompt"} == {
        name: value for name, value in humaneval[0].items() if name != "prompt"
    }
    built = trainer(tmp_path, data.train, data.rewards, chat=True)
    for texts in turns(humaneval):
        assert earned(built, rows, texts) == len(rows)


def test_a_missing_column_is_an_error_at_construction(tmp_path):
    rows = [{"prompt": "1+1?", "solution": "2", "test": "assert True"}] * 4
    with pytest.raises(ACPOError, match=r"'math_correct' needs the columns answer; .*solution"):
        trainer(tmp_path, Dataset.from_list(rows), math_correct)
    with pytest.raises(ACPOError, match=r"'code_correct' needs .*entry_point and test, or inputs"):
        trainer(tmp_path, Dataset.from_list(rows), code_correct)


def test_columns_without_a_common_type_travel_as_json(tmp_path):
    rows = [{"problem": f"{n}?", "answer": "1", "tags": [n, "x"][n % 2]} for n in range(4)]
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = build_data(TaskArguments(task="custom", data=str(file)), ascii_tokenizer())
    assert data.train["tags"][:] == ["0", '"x"', "2", '"x"']
