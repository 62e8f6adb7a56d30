import json

import pytest

from acpo.errors import ACPOError
from acpo.tasks import (
    TASKS,
    TEMPLATES,
    Columns,
    get_task,
    get_template,
    import_reward,
    reward_function,
)
from acpo.tasks.grading import ROW
from acpo.tasks.problems import load_problems as load_whole
from acpo.tasks.problems import split_off
from acpo.tasks.questions import load_questions
from acpo.tasks.templates import fill, strip


def load_problems(*args, **options):
    """(text, answer) pairs, and what became of the rows."""
    problems, cleaning = load_whole(*args, **options)
    return [problem[:2] for problem in problems], cleaning


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_dapo_counts(shared_data):
    file = shared_data / "dapo_math_17k.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    problems, cleaning = load_problems(get_task("dapo_math"), str(file))
    texts = {row["problem"].strip() for row in rows}
    answers = {text: set() for text in texts}
    for row in rows:
        answers[row["problem"].strip()].add(row["answer"])
    conflicts = {text for text in texts if len(answers[text]) > 1}
    assert len({row["problem"] for row in rows}) == 17290  # with the white space around it
    assert (cleaning.rows, len(texts), len(conflicts)) == (17917, 17255, 12)
    assert cleaning.conflicting == 12
    assert cleaning.kept == len(problems) == 17255 - 12
    assert cleaning.rows == cleaning.repeated + cleaning.conflicting_rows + cleaning.kept
    assert {text for text, _ in problems} == texts - conflicts


@pytest.mark.parametrize(
    ("task", "file", "kept", "unanswered"),
    [
        ("gsm8k", "gsm8k_train.jsonl", 7473, 0),
        ("gsm8k", "gsm8k_test.jsonl", 1319, 0),
        ("math", "math_train.jsonl", 7470, 4),
        ("math", "math500.jsonl", 500, 0),
    ],
)
def test_real_files(shared_data, task, file, kept, unanswered):
    problems, cleaning = load_problems(get_task(task), str(shared_data / file))
    assert (len(problems), cleaning.unanswered) == (kept, unanswered)


def found(task, file):
    return load_problems(task, file)[0]


def message(content, role="user"):
    return {"role": role, "content": content}


def test_text_parts_of_a_message_are_joined(tmp_path):
    parts = [{"type": "text", "text": "12+3"}, {"type": "text", "text": "?", "image": None}]
    row = {"prompt": [message(parts)], "answer": "15"}
    assert found(get_task("custom"), write(tmp_path / "p.jsonl", [row])) == [("12+3?", "15")]


@pytest.mark.parametrize(
    "prompt",
    [
        [message("Answer in hex.", "system"), message("12+3?")],
        [message("2+2?"), message("4", "assistant"), message("and twice that?")],
        [message([{"type": "image"}, {"type": "text", "text": "How many?"}])],
        [message("2+2?", "assistant")],
        [{"from": "human", "value": "2+2?"}],
    ],
)
def test_no_message_of_a_conversation_is_dropped(tmp_path, prompt):
    rows = [{"prompt": [message("1+1?")], "answer": "2"}, {"prompt": prompt, "answer": "8"}]
    said = "row 2: 'prompt' is a conversation of .* put a system message into system_prompt"
    with pytest.raises(ACPOError, match=said):
        found(get_task("custom"), write(tmp_path / "p.jsonl", rows))


def test_layouts_of_the_hub(tmp_path):
    prompt = fill(TEMPLATES["dapo"], {"problem": "What is {1+1}?"})
    dapo = {
        "prompt": [{"role": "user", "content": prompt}],
        "reward_model": {"ground_truth": "2", "style": "rule"},
    }
    assert found(get_task("dapo_math"), write(tmp_path / "d.jsonl", [dapo])) == [
        ("What is {1+1}?", "2")
    ]
    gsm8k = {"question": "How many?", "answer": "48/2 = <<48/2=24>>24.\n#### 1,024"}
    assert found(get_task("gsm8k"), write(tmp_path / "g.jsonl", [gsm8k])) == [("How many?", "1024")]
    math = {
        "problem": "Half?",
        "solution": "So \\boxed{1} no, \\boxed{\\frac{1}{2}}.",
        "level": "1",
    }
    assert found(get_task("math"), write(tmp_path / "m.jsonl", [math])) == [
        ("Half?", "\\frac{1}{2}")
    ]


def test_every_file_format_gives_the_same_problems(tmp_path):
    import pyarrow as pa
    from pyarrow import csv, parquet

    rows = [{"q": "1+1?", "gold": "2"}, {"q": "2+2?", "gold": "4"}, {"q": "1+1?", "gold": "2"}]
    table = pa.Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / "p.parquet")
    csv.write_csv(table, tmp_path / "c.csv")
    (tmp_path / "j.json").write_text(json.dumps(rows))
    write(tmp_path / "l.jsonl", rows)
    for name in ("p.parquet", "c.csv", "j.json", "l.jsonl"):
        problems, cleaning = load_problems(
            get_task("custom"), str(tmp_path / name), columns=[Columns("q", "gold")]
        )
        assert problems == [("1+1?", "2"), ("2+2?", "4")]
        assert (cleaning.rows, cleaning.repeated) == (3, 1)


def test_a_question_in_bytes_is_refused_and_not_asked_as_python_writes_it(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    file = tmp_path / "p.parquet"
    parquet.write_table(pa.table({"problem": [b"1+1?"], "answer": [b"2"]}), file)
    with pytest.raises(ACPOError, match=r"row 1.*'problem' holds bytes, as in b'1\+1\?'"):
        load_problems(get_task("custom"), str(file))


def test_cells_of_a_csv_file_are_text(tmp_path):
    file = tmp_path / "c.csv"
    answers = ["9007199254740993", "0.5", "12:30", "true", "007"]
    lines = "".join(f'"Line one,\nand {i}?",{gold}\n' for i, gold in enumerate(answers))
    file.write_text("\ufeffproblem,answer\n" + lines * 20_000, encoding="utf-8")
    problems, _ = load_problems(get_task("custom"), str(file))
    assert [problem[1] for problem in problems] == answers
    assert problems[0][0] == "Line one,\nand 0?"


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.jsonl"])
def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path, name):
    row = {"problem": "1+1?", "answer": "2"}
    text = {".csv": "problem,answer\n1+1?,2\n", ".json": json.dumps([row])}
    file = tmp_path / name
    file.write_text("\ufeff" + text.get(file.suffix, json.dumps(row) + "\n"), encoding="utf-8")
    assert load_problems(get_task("custom"), str(file))[0] == [("1+1?", "2")]


@pytest.mark.parametrize("name", ["bad.csv", "bad.json"])
def test_other_encodings_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"problem,answer\nA caf\xe9?,1\n")
    with pytest.raises(ACPOError, match=rf"{name}:2: not UTF-8: byte 0xe9 at column 6; save"):
        load_problems(get_task("custom"), str(tmp_path / name))


@pytest.mark.parametrize("name", ["p.jsonl", "p.csv", "p.parquet"])
def test_what_a_file_is_its_first_row_says(tmp_path, monkeypatch, name):
    """Large files are read once, for their problems."""
    import pyarrow as pa
    from pyarrow import parquet

    (tmp_path / "p.jsonl").write_text('{"problem": "1+1?", "answer": "2"}\nno JSON\n')
    (tmp_path / "p.csv").write_text("problem,answer\n1+1?,2\n2+2?,4,5\n")
    table = pa.table({"problem": ["1+1?"] * 3, "answer": ["2"] * 3})
    parquet.write_table(table, tmp_path / "p.parquet")
    monkeypatch.setattr(parquet, "read_table", None)
    assert get_task(str(tmp_path / name)).grader == "math"


def test_a_cell_of_a_csv_file_may_be_long(tmp_path):
    text = "x" * 200_000
    (tmp_path / "c.csv").write_text(f"problem,answer\n{text},2\n")
    assert found(get_task("custom"), str(tmp_path / "c.csv")) == [(text, "2")]


def test_rows_of_other_widths_are_refused(tmp_path):
    (tmp_path / "c.csv").write_text("problem,answer\n1+1?,2\n2+2?,4,5\n")
    with pytest.raises(ACPOError, match=r"row 2 has not as many cells"):
        load_problems(get_task("custom"), str(tmp_path / "c.csv"))


def test_conflicting_and_unanswered_rows_leave(tmp_path):
    rows = [
        {"problem": "a ", "answer": "1"},
        {"problem": "b", "answer": "2"},
        {"problem": "a", "answer": "3"},
        {"problem": "c", "answer": None},
        {"problem": "d", "answer": " "},
    ]
    problems, cleaning = load_problems(get_task("custom"), write(tmp_path / "x.jsonl", rows))
    assert problems == [("b", "2")]
    assert str(cleaning) == (
        "5 rows, left out: 2 without an answer, 0 repeats, 2 rows of 1 problems with "
        "conflicting answers; 1 problems remain"
    )


def test_what_pandas_writes_for_nothing_is_nothing(tmp_path):
    lost = [float("nan"), float("inf"), -float("inf")]
    rows = [{"problem": f"b{number}", "answer": one} for number, one in enumerate(lost)]
    rows += [{"problem": "a", "answer": "1"}]
    problems, cleaning = load_problems(get_task("custom"), write(tmp_path / "x.jsonl", rows))
    assert problems == [("a", "1")] and cleaning.unanswered == 3


@pytest.mark.parametrize("suffix", ["jsonl", "json"])
def test_a_gold_number_keeps_every_digit(tmp_path, suffix):
    golds = ["0.1234567890123456789", "9007199254740993.0", "1e400", "7" * 5000]
    rows = [f'{{"problem": "p{i}", "answer": {gold}}}' for i, gold in enumerate(golds)]
    file = tmp_path / f"x.{suffix}"
    file.write_text("\n".join(rows) if suffix == "jsonl" else f"[{','.join(rows)}]")
    problems, _ = load_problems(get_task("custom"), str(file))
    assert [answer for _, answer in problems] == golds


def test_one_answer_written_in_two_ways_is_no_conflict(tmp_path):
    pairs = [("3", "3.0"), ("1/2", "\\frac12"), ("1,000", "1000"), ("\\text{Ann}", "Ann")]
    rows = [{"problem": pair[0], "answer": answer} for pair in pairs for answer in pair]
    rows += [{"problem": "x", "answer": answer} for answer in ("3", "3.5")]
    problems, cleaning = load_problems(get_task("custom"), write(tmp_path / "x.jsonl", rows))
    assert problems == [(first, first) for first, _ in pairs]
    assert (cleaning.repeated, cleaning.conflicting, cleaning.conflicting_rows) == (4, 1, 2)


def test_every_kind_of_box_holds_an_answer(tmp_path):
    boxes = ["\\boxed{1}", "\\fbox{2}", "\\framebox{204}"]
    rows = [{"problem": box, "solution": f"So ${box}$."} for box in boxes]
    problems, _ = load_problems(get_task("math"), write(tmp_path / "x.jsonl", rows))
    assert [answer for _, answer in problems] == ["1", "2", "204"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no rows"),
        ("\n\n", "no rows"),
        ('{"problem": "a", "answer": "1"}\n{"problem": ', ":2: not JSON"),
        ("[1, 2]\n", ":1: list, not a JSON object"),
        (
            '{"frage": "a", "antwort": "1"}\n',
            "rename them, or say which they are: problem_column",
        ),
        (
            '{"problem": "a", "answer": "1"}\n{"problem": "b"}\n',
            "row 2: column 'answer' is missing",
        ),
        ('{"problem": " ", "answer": "1"}\n', "row 1: 'problem' is empty"),
        ('{"problem": "a", "answer": ""}\n', "nothing to train on"),
    ],
)
def test_bad_files(tmp_path, content, message):
    (tmp_path / "bad.jsonl").write_text(content)
    with pytest.raises(ACPOError, match=message):
        load_problems(get_task("custom"), str(tmp_path / "bad.jsonl"))


def test_columns_that_another_task_reads_are_told(tmp_path):
    file = write(tmp_path / "qa.jsonl", [{"question": "1+1?", "answer": "2"}])
    with pytest.raises(ACPOError, match=r"no problem or prompt, .* task custom reads these"):
        load_problems(get_task("dapo_math"), file)
    assert load_problems(get_task("custom"), file)[0] == [("1+1?", "2")]


def test_missing_data(tmp_path):
    with pytest.raises(ACPOError, match="is not a file"):
        load_problems(get_task("custom"), str(tmp_path / "none.jsonl"))
    with pytest.raises(ACPOError, match="set data"):
        load_problems(get_task("custom"))
    (tmp_path / "data.txt").write_text("x")
    with pytest.raises(ACPOError, match="must end in"):
        load_problems(get_task("custom"), str(tmp_path / "data.txt"))
    (tmp_path / "p.parquet").write_text("not parquet")
    with pytest.raises(ACPOError, match="cannot be read as parquet"):
        load_problems(get_task("custom"), str(tmp_path / "p.parquet"))
    with pytest.raises(ACPOError, match="neither a file here nor a data set"):
        load_problems(get_task("custom"), "nobody/nothing")


def test_names_are_suggested():
    with pytest.raises(ACPOError, match="did you mean 'gsm8k'"):
        get_task("gsm8")


def test_templates():
    assert fill(get_template("plain"), {"problem": "{x}"}) == "{x}"
    assert fill(get_template("Q: {problem}\nA:"), {"problem": "1+1"}) == "Q: 1+1\nA:"
    assert fill("{a} {{a}} {b.c} {}", {"a": 1, "b": {"c": 2}}) == "1 {a} 2 {}"
    with pytest.raises(ACPOError, match=r"template has \{promblem\}, but the row has problem"):
        fill("{promblem}", {"problem": "why?"})
    for text in TEMPLATES.values():
        if "{problem}" in text:
            assert strip(text, fill(text, {"problem": "why?"})) == "why?"
    assert strip(TEMPLATES["dapo"], "why?") == "why?"
    for bad in ("boxd", "{}", "{{problem}}"):
        with pytest.raises(ACPOError, match=r"contains \{problem\} or another column"):
            get_template(bad)


def test_held_out_problems_are_disjoint_and_fixed():
    problems = [(str(i), "1") for i in range(50)]
    training, held = split_off(problems, 10)
    assert len(held) == 10
    assert sorted(training + held) == sorted(problems)
    assert split_off(problems, 10)[1] == held
    with pytest.raises(ACPOError, match="held_out=50"):
        split_off(problems, 50)


@pytest.mark.parametrize("name", [name for name in TASKS if TASKS[name].grader != "code"])
def test_every_task_rewards_its_gold_answer(name):
    reward = reward_function(TASKS[name])
    right = "1+2=3" if name == "chain" else "So the answer is \\boxed{3}"
    columns = {"answer": ["3", "3"], ROW: ['{"answer": "3"}'] * 2}
    assert reward(["?", "?"], [right, right.replace("3", "4")], **columns) == [1.0, 0.0]


def test_reward_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "my_reward_module": "LIMIT = 3\ndef best(prompts, completions, **c): return []",
        "my_broken_syntax": "import math\ndef best(:",
        "my_broken_import": "import math\nfrom math import none",
        "my_broken_value": "import math\n\n1 / 0",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert import_reward("my_reward_module.best")([], []) == []
    (tmp_path / "of, mine").mkdir()
    (tmp_path / "of, mine" / "a.py").write_text("def best(prompts, completions, **c): return []")
    assert import_reward("of, mine/a.py:best")([], []) == []
    for path, message in (
        ("best", "not a dotted path"),
        ("my_reward_module.py", "is a file; name its function: my_reward_module.py:NAME"),
        ("my_reward_module.py:", "is a file; name its function: my_reward_module.py:NAME"),
        ("a.f,b.g", r"--reward_funcs a.f b.g, or in a recipe reward_funcs: \[a.f, b.g\]"),
        ("[a.f, 'b.py:g']", "--reward_funcs a.f b.py:g, or in a recipe"),
        ("no_such_module.best", "cannot be imported"),
        ("my_reward_module.worst", "has no 'worst'"),
        ("my_reward_module.LIMIT", "has LIMIT=3, no function"),
        ("my_broken_syntax.best", "cannot be imported: .*my_broken_syntax.py:2: SyntaxError"),
        ("my_broken_import.best", "my_broken_import.py:2: ImportError: cannot import name 'none'"),
        ("my_broken_value.best", "my_broken_value.py:3: ZeroDivisionError"),
    ):
        with pytest.raises(ACPOError, match=message):
            import_reward(path)


def test_a_hub_data_set_stays_on_disk(monkeypatch):
    import datasets

    asked = {}

    def load(path, name, split):
        asked.update(path=path, name=name, split=split)
        rows = [{"question": f"{i % 5}?", "answer": f"So.\n#### {i % 5}"} for i in range(500)]
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(datasets, "load_dataset", load)
    problems, cleaning = load_problems(get_task("gsm8k"), split="test")
    assert asked == {"path": "openai/gsm8k", "name": "main", "split": "test"}
    assert problems == [(f"{i}?", str(i)) for i in range(5)]
    assert (cleaning.rows, cleaning.repeated) == (500, 495)
    load_problems(get_task("gsm8k"), "somebody/else")
    assert asked == {"path": "somebody/else", "name": None, "split": "train"}


def test_a_gold_answer_in_a_list_is_the_answer(tmp_path):
    """As a text it would be "['3']", which no right answer equals."""
    path = tmp_path / "p.jsonl"
    path.write_text('{"problem": "1 + 2?", "answer": ["3"]}\n')
    assert load_questions(str(path)).questions[0].row["answer"] == "3"
