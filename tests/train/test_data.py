import json
from types import SimpleNamespace

import pytest
from datasets import Dataset
from tokenizers import normalizers

from acpo.checkpoints import unread
from acpo.errors import ACPOError
from acpo.tasks.chain import HELD_OUT_SEED, chain_problems
from acpo.tasks.problems import Problem
from acpo.tasks.registry import get_task
from acpo.train import data as data_module
from acpo.train.checks import check_readable
from acpo.train.data import TrainingData, build_data, prompt_lengths
from acpo.train.recipe import TaskArguments
from tasks.tiny import chain_tokenizer
from train.standin import ascii_tokenizer, write_problems


def build(tmp_path, chat_template=True, **options):
    data = write_problems(tmp_path / "problems.jsonl", 30)
    arguments = TaskArguments(**{"task": "custom", "data": data, **options})
    return build_data(arguments, ascii_tokenizer(chat_template))


def test_chat_or_plain_follows_the_tokenizer(tmp_path):
    chat = build(tmp_path, system_prompt="Be brief.").train[0]["prompt"]
    assert [message["role"] for message in chat] == ["system", "user"]
    assert chat[-1]["content"].startswith("What is 0 + 3 - 0?\n\nPlease reason")
    assert isinstance(build(tmp_path, chat_template=False).train[0]["prompt"], str)
    assert isinstance(build(tmp_path, chat=False).train[0]["prompt"], str)
    with pytest.raises(ACPOError, match="no chat template"):
        build(tmp_path, chat_template=False, chat=True)
    with pytest.raises(ACPOError, match="system_prompt"):
        build(tmp_path, chat=False, system_prompt="Be brief.")


def test_held_out_problems_are_not_trained_on(tmp_path):
    data = build(tmp_path, held_out=10)
    trained = {json.dumps(row["prompt"]) for row in data.train}
    held = {json.dumps(row["prompt"]) for row in data.held_out}
    assert (len(trained), len(held)) == (20, 10)
    assert not trained & held


def test_a_held_out_file_is_removed_from_the_training_problems(tmp_path):
    held = write_problems(tmp_path / "held.jsonl", 5)  # the first five of the thirty
    data = build(tmp_path, held_out=5, held_out_data=held)
    assert (len(data.train), len(data.held_out)) == (25, 5)
    assert not set(map(str, data.train["prompt"])) & set(map(str, data.held_out["prompt"]))
    assert "5 training problems also in held_out_data left out" in data.notes
    with pytest.raises(ACPOError, match="all 5 training problems are also in held_out_data"):
        build(tmp_path, data=held, held_out_data=held)


def test_a_held_out_file_is_used_whole_where_no_number_is_given(tmp_path):
    held = write_problems(tmp_path / "held.jsonl", 5)
    data = build(tmp_path, held_out_data=held)
    assert (len(data.train), len(data.held_out)) == (25, 5)


def test_a_held_out_file_is_not_trained_on_when_nothing_is_measured(tmp_path):
    held = write_problems(tmp_path / "held.jsonl", 5)
    data = build(tmp_path, held_out_data=held, held_out=0)
    assert len(data.train) == 25 and data.held_out is None
    assert any("0 of them used" in note for note in data.notes)


def test_a_test_split_is_not_trained_on_when_nothing_is_measured(tmp_path, monkeypatch):
    """A sweep holds nothing out, and must count its problems as the study's runs count theirs."""

    def load(task, source, *, split="train", **options):
        numbers = range(9) if split == "train" else range(8, 12)
        return [Problem(str(i), "1", {"problem": str(i)}) for i in numbers], "cleaned"

    monkeypatch.setattr(data_module, "load_problems", load)
    options = {"task": "gsm8k", "data": None, "chat": False}
    sweep, study = (build(tmp_path, **options, held_out=count) for count in (0, 2))
    assert sweep.held_out is None and len(study.held_out) == 2
    assert sweep.train["prompt"] == study.train["prompt"] and len(sweep.train) == 8


def test_held_out_problems_are_of_the_same_configuration(tmp_path, monkeypatch):
    asked = []

    def load(task, source, *, config=None, split="train", columns=None, template=None):
        asked.append((source, config, split))
        rows = [Problem(f"{split} {i}", "1", {"problem": f"{split} {i}"}) for i in range(9)]
        return rows, "cleaned"

    monkeypatch.setattr(data_module, "load_problems", load)
    given = {"data": "org/d", "data_config": "algebra", "held_out": 3, "held_out_split": "test"}
    build(tmp_path, **given, held_out_data="org/d")
    build(tmp_path, **given, held_out_data="org/other")
    assert asked[1] == ("org/d", "algebra", "test") and asked[3] == ("org/other", None, "test")


def test_rows_that_differ_in_what_the_template_shows_are_all_kept(tmp_path):
    rows = [{"problem": "Which?", "choices": one, "answer": one} for one in ("a b", "c d", "c d")]
    file = tmp_path / "choices.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"data": str(file), "chat": False, "template": "{problem} {choices}"}
    assert build(tmp_path, **options).train["prompt"] == ["Which? a b", "Which? c d"]
    other = tmp_path / "other.jsonl"
    other.write_text(
        "".join(json.dumps({**rows[1], "choices": one}) + "\n" for one in ("c d", "e"))
    )
    held = build(tmp_path, **options, held_out_data=str(other), held_out=2)
    assert held.train["prompt"] == ["Which? a b"] and len(held.held_out) == 2
    with pytest.raises(ACPOError, match="3 rows of 1 problems with conflicting answers"):
        build(tmp_path, data=str(file), chat=False, template="{problem}")


def test_long_prompts_leave_and_are_counted(tmp_path):
    rows = [{"problem": "x" * size, "answer": "1"} for size in (5, 50, 500)]
    file = tmp_path / "long.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"data": str(file), "template": "plain", "chat": False}
    data = build(tmp_path, **options, max_prompt_tokens=50)
    assert [len(prompt) for prompt in data.train["prompt"]] == [5, 50]
    assert "1 training prompts of more than 50 tokens left out; 2 remain" in data.notes
    with pytest.raises(ACPOError, match="all 3 training prompts are longer; the shortest has 5"):
        build(tmp_path, **options, max_prompt_tokens=4)


def test_lengths_count_the_chat_template(tmp_path):
    data = build(tmp_path, template="plain")
    length = len("<user>What is 0 + 3 - 0?</><assistant>")
    assert prompt_lengths(data.train["prompt"][:1], ascii_tokenizer()) == [length]


THINKING = "{% for m in messages %}{{ m['content'] }}{% endfor %}{{ '<none>' if not think }}"


def test_lengths_follow_the_options_of_the_chat_template(tmp_path):
    tokenizer = ascii_tokenizer()
    tokenizer.chat_template = THINKING
    file = write_problems(tmp_path / "problems.jsonl", 3)
    arguments = TaskArguments(task="custom", data=file, template="plain", max_prompt_tokens=20)
    data = build_data(arguments, tokenizer, template_options={"think": True})
    assert len(data.train) == 3 and data.template_options == {"think": True}
    with pytest.raises(ACPOError, match="the shortest has 24 tokens"):
        build_data(arguments, tokenizer, template_options={"think": False})


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('System role not supported') }}", "TemplateError: System role not"),
        ("{% for m in messages %}{{ m['content'] }", "TemplateSyntaxError: "),
    ],
)
def test_a_chat_template_that_refuses_is_told_in_its_words(tmp_path, template, words):
    tokenizer = ascii_tokenizer()
    tokenizer.chat_template = template
    file = write_problems(tmp_path / "problems.jsonl", 3)
    arguments = TaskArguments(task="custom", data=file, system_prompt="s", max_prompt_tokens=99)
    with pytest.raises(ACPOError, match=rf"roles system, user \({words}.*system_prompt"):
        build_data(arguments, tokenizer)


def test_chains_differ_by_seed_and_avoid_the_held_out():
    arguments = TaskArguments(task="chain", chain_steps=3, held_out=50, max_problems=400)
    first = build_data(arguments, chain_tokenizer(), seed=0)
    other = build_data(arguments, chain_tokenizer(), seed=1)
    held = {problem.prompt for problem in chain_problems(50, steps=3, seed=HELD_OUT_SEED)}
    assert set(first.held_out["prompt"]) == set(other.held_out["prompt"]) == held
    assert first.train["prompt"] != other.train["prompt"]
    assert not (set(first.train["prompt"]) | set(other.train["prompt"])) & held
    assert len(first.train) == 400


ENDLESS = """
import random
from acpo.tasks import Task

def problems(seed):
    rng = random.Random(seed)
    while True:
        yield {"q": "".join(rng.choices("abcdefghij", k=rng.randint(1, 9)))}

def grade(completion, row):
    with open(__file__ + ".log", "a") as log:
        log.write(row["q"] + "\\n")
    return len(completion) % 2 == 0

words = Task(problems=problems, template="{q}", grader=grade, in_process=True)
"""


def test_long_problems_of_an_endless_task_are_made_up_for(tmp_path):
    (tmp_path / "own.py").write_text(ENDLESS)
    task = f"{tmp_path / 'own.py'}:words"
    tokenizer = ascii_tokenizer(chat=False)
    arguments = TaskArguments(task=task, held_out=5, max_prompt_tokens=4)
    data = build_data(arguments, tokenizer, prompts=30)
    assert len(set(data.train["prompt"])) == 30 and len(set(data.held_out["prompt"])) == 5
    assert max(map(len, data.train["prompt"])) == 4
    assert "training prompts of more than 4 tokens left out, and others made" in data.notes
    longer = build_data(arguments, tokenizer, prompts=40)
    assert longer.train["prompt"][:30] == data.train["prompt"]
    arguments.template = "at least this long {q}"
    for arguments.held_out, drawn in ((5, 1280), (1000, 1000)):
        said = f"max_prompt_tokens=4: of {drawn} held-out .* only 0 are as short, and"
        with pytest.raises(ACPOError, match=said):
            build_data(arguments, tokenizer, prompts=30)


def test_every_column_of_the_file_reaches_the_reward(tmp_path):
    rows = [
        {"problem": "a?", "answer": "1", "level": 3, "meta": {"a": 1}, "mixed": 1},
        {"problem": "b?", "answer": "2", "level": 4, "meta": {"a": 2}, "mixed": "x"},
    ]
    file = tmp_path / "columns.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train = build(tmp_path, data=str(file)).train
    assert train["level"] == [3, 4] and train["meta"] == [{"a": 1}, {"a": 2}]
    assert train["mixed"] == ["1", '"x"'] and train["answer"] == ["1", "2"]


def test_numbers_that_no_column_holds_arrive_as_json(tmp_path):
    rows = [{"problem": f"{n}?", "answer": "1", "n": n} for n in (3, 2**64)]
    file = tmp_path / "huge.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert build(tmp_path, data=str(file)).train["n"] == ["3", str(2**64)]


@pytest.mark.parametrize(
    "broken", [{"problem": "2? \ud83d"}, {"note": "\ud83d"}, {"meta": {"tags": ["\ude00"]}}]
)
def test_half_a_character_names_its_row_and_column(tmp_path, broken):
    rows = [{"problem": "1? \U0001f600", "answer": "1"}, {"problem": "2?", "answer": "2"} | broken]
    file = tmp_path / "half.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ACPOError, match=f"row 2: column '{next(iter(broken))}' holds half of a"):
        build(tmp_path, data=str(file))


def test_a_code_problem_reaches_its_grader_whole(tmp_path):
    row = {"prompt": "def f(x):\n", "entry_point": "f", "test": "def check(c):\n    assert c(1)\n"}
    file = tmp_path / "code.jsonl"
    file.write_text(json.dumps(row) + "\n")
    train = build_data(TaskArguments(task=str(file)), ascii_tokenizer(chat=False)).train
    whole = json.loads(train[0]["task_row"])
    assert row.items() <= whole.items() and "def f(x)" in train[0]["prompt"]


@pytest.mark.parametrize(
    ("named", "row"),
    [
        ({"answer_column": "solution"}, {"problem": "?", "solution": "3", "answer": "4"}),
        ({"problem_column": "ask.text"}, {"ask": {"text": "?"}, "problem": "!", "gold": "3"}),
        ({"problem_column": "q", "answer_column": "a"}, {"q": "?", "a": "3"}),
    ],
)
def test_the_column_that_is_not_named_is_one_of_the_usual(tmp_path, named, row):
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps(row) + "\n")
    first = build(tmp_path, chat_template=False, template="{problem}", data=str(file), **named)
    assert (first.train[0]["prompt"], first.train[0]["answer"]) == ("?", "3")


def test_a_column_that_is_named_is_not_replaced_by_a_usual_one(tmp_path):
    with pytest.raises(ACPOError, match="row 1 has no solution, only problem, answer"):
        build(tmp_path, answer_column="solution")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_problems": 0}, "max_problems=0 must be positive"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens=0 must be positive"),
        ({"held_out": -1}, "held_out=-1"),
        ({"task": "chain"}, "data=.* task='chain' makes its own problems"),
        ({"task": "chain", "data": None, "data_split": "test"}, "data_split='test' is for a data"),
        ({"task": "chain", "data": None, "data_config": "a"}, "data_config='a' is for a data set"),
        ({"held_out_split": "b", "held_out_data": "held.jsonl"}, "held_out_split='b' is for a"),
    ],
)
def test_options_that_make_no_sense(tmp_path, options, message):
    with pytest.raises(ACPOError, match=message):
        build(tmp_path, **options)


def test_a_sum_is_no_answer_to_itself_in_a_task_of_arithmetic(tmp_path):
    data = build(tmp_path, task="arithmetic", held_out=10)
    row = {name: data.train[name][:1] for name in data.train.column_names if name != "prompt"}
    (reward,) = data.rewards

    def rewarded(answer):
        return reward(data.train["prompt"][:1], [f"\\boxed{{{answer}}}"], **row)

    assert rewarded(row["answer"][0]) == [1.0] and rewarded(f"{row['answer'][0]} + 0") == [0.0]


@pytest.mark.parametrize(
    ("pad", "unknown", "texts", "expected"),
    [
        ("<pad>", "<unk>", ["ab", "äb", "b"], 1 / 5),
        ("<pad>", "<unk>", ["what <unk> and <pad> mean"], 0),
        ("<eos>", "<eos>", ["ab"], 0),
        (None, None, ["ab"], 0),
    ],
)
def test_what_a_tokenizer_cannot_read(pad, unknown, texts, expected):
    tokenizer = ascii_tokenizer(chat=False)
    tokenizer.pad_token, tokenizer.unk_token = pad, unknown
    share, said = unread(texts, tokenizer)
    assert share == expected
    assert not expected or said == "'<unk>b' of 'äb'"


def test_a_tokenizer_that_changes_text_on_purpose_reads_it():
    tokenizer = ascii_tokenizer(chat=False)
    tokenizer.unk_token = "<unk>"
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    assert unread(["Ärger"], tokenizer)[0] == 0


def test_a_few_characters_that_cannot_be_read_are_told(tmp_path):
    tokenizer, notes = ascii_tokenizer(chat=False), []
    tokenizer.unk_token = "<unk>"
    rows = Dataset.from_dict({"prompt": ["what is é + 1 in numbers?"]})
    data = TrainingData(get_task("custom"), rows, None, [], notes)
    check_readable(SimpleNamespace(model_name="m"), data, tokenizer)
    assert notes == [
        "4.00% of the prompts is lost to the tokenizer, which makes 'what is <unk> + 1 in "
        "numbers?' of 'what is é + 1 in numbers?'"
    ]
