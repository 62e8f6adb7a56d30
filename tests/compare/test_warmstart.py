"""The supervised start: solutions behind prompts, a loss that falls, and no held-out problem."""

import json
from concurrent.futures import Future

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from acpo.compare.plan import WarmStart
from acpo.compare.study_file import read_study
from acpo.compare.warmstart import prepare_start, read_examples
from acpo.errors import ACPOError
from evaluate.tinymodel import save

SETTINGS = WarmStart(epochs=8, learning_rate=1e-2, batch_size=4, max_tokens=400)
STUDY = """\
recipe: recipe.yaml
methods: [sapo]
updates: 4
seeds: [0]
warm_start: {epochs: 8, learning_rate: 1.0e-2, batch_size: 4}
"""


@pytest.fixture
def recipe(tmp_path):
    rows = [
        {"question": f"{n} and {n}?", "answer": f"It is <<{n}+{n}={2 * n}>>{2 * n}\n#### {2 * n}"}
        for n in range(10, 30)
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return {
        "model_name_or_path": str(save(tmp_path / "model")),
        "task": "gsm8k",
        "data": str(tmp_path / "train.jsonl"),
        "held_out": 4,
        "held_out_data": "elsewhere.jsonl",
        "logging_steps": 1,
    }


def examples(recipe, settings=SETTINGS):
    tokenizer = AutoTokenizer.from_pretrained(recipe["model_name_or_path"])
    return tokenizer, read_examples(recipe, settings, tokenizer)


def test_an_example_is_a_prompt_and_its_solution(recipe):
    tokenizer, found = examples(recipe)
    ids, asked = found[0]
    assert tokenizer.decode(ids[asked:]) == "It is 20\n#### 20<eos>"
    assert "10 and 10?" in tokenizer.decode(ids[:asked])
    assert examples(recipe, WarmStart(max_tokens=5))[1] == []


def test_held_out_problems_are_not_trained_on(recipe):
    with pytest.raises(ACPOError, match="whose solutions would be trained on; set held_out_data"):
        examples({**recipe, "held_out_data": None})
    assert examples({**recipe, "held_out_data": None, "held_out": 0})[1]


def test_made_once_and_not_mixed(recipe, tmp_path):
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    (tmp_path / "study.yaml").write_text(STUDY)
    calls = []

    def submit(function, *arguments):
        calls.append(function)
        future = Future()
        future.set_result(function(*arguments))
        return future

    def start():
        study = read_study(tmp_path / "study.yaml")
        return prepare_start(study, tmp_path, submit, lambda _: None)

    place = start()
    assert start() == place and len(calls) == 1
    record = json.loads((tmp_path / "warm-start" / "warmstart.json").read_text())
    assert (record["examples"], record["steps"]) == (20, 8 * 5)
    assert record["loss"] < 3.0, "from 5.6, that of 258 equal letters"
    AutoModelForCausalLM.from_pretrained(place)
    (tmp_path / "study.yaml").write_text(STUDY.replace("epochs: 8", "epochs: 9"))
    with pytest.raises(ACPOError, match="made with other settings"):
        start()
    (tmp_path / "warm-start" / "warmstart.json").write_text("{")
    with pytest.raises(ACPOError, match="damaged"):
        start()
