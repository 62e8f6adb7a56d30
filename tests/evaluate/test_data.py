"""Benchmarks as declared: rows, checksums, sources, gold, overlap with training data."""

import http.server
import json
import math
import threading

import pytest

from acpo.errors import ACPOError
from acpo.evaluate.check import ngrams, overlaps, training_golds, words
from acpo.evaluate.command import K
from acpo.tasks import BENCHMARKS, PAPER, TASKS, Columns, get_task
from acpo.tasks.problems import canonical
from acpo.tasks.questions import load_questions
from acpo.tasks.sources import read_pinned
from acpo.tasks.task import CODE, Pinned, Task
from evaluate.runs import acpo, sums


@pytest.mark.parametrize("name", BENCHMARKS)
def test_files_are_the_declared_ones(shared_data, name):
    loaded = load_questions(name, shared_data)
    assert len({question.prompt for question in loaded.questions}) == TASKS[name].test.rows
    marker = "```python" if loaded.task.grader == CODE else "\\boxed{}"
    assert all(marker in question.prompt for question in loaded.questions)


def test_the_help_says_who_has_one_sample_per_question():
    usual = Task().k
    alone = [task for task in TASKS.values() if task.k != usual]
    named = {"code" if task.grader == CODE else task.name for task in alone}
    assert {task.k for task in alone} == {1} and named == {"code", "gsm8k"}
    said = f"Samples per question (default: {usual}; code, gsm8k and gym 1; or the task's k)."
    assert K.help == said


@pytest.mark.parametrize("change", ["answer", "order", "rows"])
def test_other_questions_are_refused(shared_data, tmp_path, change):
    rows = [json.loads(line) for line in (shared_data / "aime24.jsonl").open()]
    if change == "answer":
        rows[3]["answer"] = "1"
    elif change == "order":
        rows[0], rows[1] = rows[1], rows[0]
    else:
        rows.pop()
    path = tmp_path / "aime24.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ACPOError, match=r"aime24: (checksum|29 rows)"):
        load_questions("aime24", tmp_path)
    assert len(load_questions(str(path)).questions) == len(rows), "as one's own file it is fine"


def test_white_space_and_field_names_do_not_matter(shared_data, tmp_path):
    rows = [json.loads(line) for line in (shared_data / "hmmt25.jsonl").open()]
    suffix = "\nPlease reason step by step, and put your final answer within \\boxed{}."
    renamed = [
        {"prompt": row["problem"].replace(" ", "  ") + suffix, "expected_answer": row["answer"]}
        for row in rows
    ]
    (tmp_path / "hmmt25.jsonl").write_text("".join(json.dumps(row) + "\n" for row in renamed))
    assert load_questions("hmmt25", tmp_path).checksum == TASKS["hmmt25"].test.checksum


def test_sources_are_pinned():
    assert set(BENCHMARKS) == {*PAPER, "gsm8k"}
    for source in (TASKS[name].test for name in BENCHMARKS):
        assert len(source.commit) == 40 and source.commit in source.url
        assert source.rows and len(source.checksum) == 64


def test_download_happens_once_and_is_checked(shared_data, tmp_path, monkeypatch):
    rows = [json.loads(line) for line in (shared_data / "gsm8k_test.jsonl").open()]
    published = [{"question": r["problem"], "answer": r["solution"]} for r in rows]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in published))
    asked = []

    class Files(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, *args):
            asked.append(self.path)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/test.jsonl"
        monkeypatch.setattr(Pinned, "url", url)
        first, second = load_questions("gsm8k"), load_questions("gsm8k")
        server.shutdown()
    assert first == second and asked == ["/test.jsonl"]
    assert first.questions[0].row["answer"] == "18"


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('[{"n": 1}, {"n": 2}]', [{"n": 1}, {"n": 2}]),
        ('{"n": 1}\n\n{"n": 2}\n', [{"n": 1}, {"n": 2}]),
        ('{"n": 1}\n{"n": \n', "2: not JSON"),
        ('[{"n": 1}, 2]', "row 2: expected an object"),
    ],
)
def test_a_published_file_is_a_list_or_lines(tmp_path, monkeypatch, text, rows):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = TASKS["aime24"].test
    kept = tmp_path / "acpo" / f"aime24-{source.commit[:12]}"
    kept.parent.mkdir()
    kept.write_text(text)
    if isinstance(rows, str):
        with pytest.raises(ACPOError, match=rows):
            read_pinned("aime24", source, None)
    else:
        assert read_pinned("aime24", source, None) == rows


def test_without_a_network_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(Pinned, "url", "http://127.0.0.1:9/absent")
    with pytest.raises(ACPOError, match=r"put aime24.jsonl into a folder .* --data-dir"):
        load_questions("aime24")


def test_missing_file_in_the_data_folder(tmp_path):
    with pytest.raises(ACPOError, match=r"no math500.jsonl"):
        load_questions("math500", tmp_path)


@pytest.mark.parametrize(
    ("name", "near"), [("AIME-24", "aime24"), ("humanevalpro", "humaneval_pro"), ("hmmt", "hmmt25")]
)
def test_unknown_names_get_the_nearest(name, near):
    with pytest.raises(ACPOError, match=f"did you mean '{near}'"):
        get_task(name)


def test_own_code_file_is_known_by_its_fields(tmp_path):
    row = {
        "prompt": "def f(x):\n",
        "entry_point": "f",
        "test": "def check(c):\n    assert c(1) == 1\n",
    }
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(row) + "\n")
    loaded = load_questions(str(path))
    assert loaded.task.grader == CODE and "def f(x)" in loaded.questions[0].prompt


def test_equal_ids_are_refused(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"id": 1, "problem": "a", "answer": "1"}\n' * 2)
    with pytest.raises(ACPOError, match="two rows have id='1'"):
        load_questions(str(path))


def test_ids_that_say_nothing_are_no_ids(tmp_path):
    path = tmp_path / "mine.jsonl"
    ids = [None, "", " ", 0.5, "a"]
    rows = [{"id": name, "problem": "a", "answer": "1"} for name in ids]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = [question.id for question in load_questions(str(path)).questions]
    assert names == ["0", "1", "2", "0.5", "a"]


def test_words_see_through_layout():
    assert words(r"Find $\left( x+\dfrac{1}{2} \right)$!") == words(
        r"find (x + \frac 12)".replace("12", "1 2")
    )
    assert words("12+345") == ["12", "345"] and words("求所有") == ["求", "所", "有"]
    assert ngrams("a b c d", 3) == {("a", "b", "c"), ("b", "c", "d")}
    assert ngrams("a b", 3) == {("a", "b")} and ngrams("$", 3) == set()


def test_overlap_by_hand(tmp_path):
    texts = ["one two three four five six", "alpha beta gamma delta", "short one"]
    path = tmp_path / "b.jsonl"
    path.write_text("".join(json.dumps({"problem": t, "answer": "1"}) + "\n" for t in texts))
    training = [
        "nothing here",
        "say TWO, three; four five! ok",
        "short one",
        "a short one b",
        "one two three",
    ]
    (found,) = overlaps([load_questions(str(path))], training, size=3)
    assert [tuple(entry) for entry in found] == [("2", 2, 1.0, 1), ("0", 1, 0.5, 2)]


def test_data_check_finds_a_planted_question(shared_data, tmp_path):
    rows = [json.loads(line) for line in (shared_data / "aime25.jsonl").open()]
    train = tmp_path / "train.jsonl"
    planted = [{"problem": "unrelated"}, {"problem": "Q: " + rows[4]["problem"].upper()}]
    train.write_text("".join(json.dumps(row) + "\n" for row in planted))
    listed = tmp_path / "overlaps.jsonl"
    done = acpo(
        *("data", "check", "--benchmarks", "aime24,aime25", "--data-dir", shared_data),
        *("--train", train, "--output", listed),
    )
    assert done.returncode == 0, done.stderr
    assert "aime25-4: 100% of its n-grams in training row 2," in done.stdout
    (entry,) = [json.loads(line) for line in listed.open()]
    assert entry["question"] == "aime25-4" and entry["share"] == 1.0


def chat_row(text, gold="3"):
    message = {"role": "user", "content": text}
    return {"prompt": [message], "reward_model": {"ground_truth": gold}}


def check_training(tmp_path, rows, *options):
    """`acpo data check` of three sums against a training set of these rows."""
    train = tmp_path / "train.jsonl"
    train.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = sums(tmp_path / "sums.jsonl", 3)
    return acpo("data", "check", "--benchmarks", data, "--train", train, *options)


def test_data_check_reads_chat_rows_as_training_does(tmp_path):
    rows = [chat_row("unrelated"), chat_row("What is 1 + 2?", "\\frac{")]
    fields = ("--train-field", "prompt", "--train-gold", "reward_model.ground_truth")
    done = check_training(tmp_path, rows, *fields)
    assert "1: 100% of its n-grams in training row 2," in done.stdout, done.stdout
    assert done.returncode == 1 and "1 of 2 rows cannot be judged against" in done.stderr
    nested = [{"extra": {"question": "What is 1 + 2?"}, "answer": "3"}]
    done = check_training(tmp_path, nested, "--train-field", "extra.question")
    assert "1: 100% of its n-grams" in done.stdout and done.returncode == 0, done.stderr


def test_data_check_reads_the_files_that_training_reads(tmp_path):
    (tmp_path / "train.csv").write_text("problem,answer\nWhat is 1 + 2?,3\n")
    data = sums(tmp_path / "sums.jsonl", 3)
    done = acpo("data", "check", "--benchmarks", data, "--train", tmp_path / "train.csv")
    assert "1: 100% of its n-grams in training row 1," in done.stdout, done.stderr


def test_overlaps_with_half_a_character_are_listed(tmp_path):
    """In a folder that is made for them: a check takes minutes."""
    listed = tmp_path / "new" / "overlaps.jsonl"
    row = {"problem": "\ud800 What is 1 + 2?", "answer": "3"}
    done = check_training(tmp_path, [row], "--ngram", 3, "--output", listed)
    assert done.returncode == 0, done.stderr
    assert json.loads(listed.read_text())["training_text"] == row["problem"]


def test_data_check_reads_golds_as_training_does(tmp_path):
    rows = [{"problem": "a", "answer": ["42"]}, {"problem": "b", "answer": math.nan}]
    assert training_golds(rows, "answer") == ["42", ""]
    assert check_training(tmp_path, rows[:1]).returncode == 0
    assert "row 2: the gold answer is ''" in check_training(tmp_path, rows).stderr


@pytest.mark.parametrize("empty", ["  ", None, [], [{"role": "user", "content": ""}]])
def test_data_check_refuses_rows_that_ask_nothing(tmp_path, empty):
    rows = [{"problem": "fine"}, {"problem": empty}]
    done = check_training(tmp_path, rows)
    assert done.returncode == 2 and "row 2: 'problem' is empty" in done.stderr


def test_data_check_says_when_it_looks_at_no_golds(tmp_path):
    rows = [{"problem": "fine", "gold": "\\frac{"}]
    done = check_training(tmp_path, rows)
    assert done.returncode == 0 and "golds not checked: no field 'answer'" in done.stderr
    done = check_training(tmp_path, rows, "--train-gold", "golld")
    assert done.returncode == 2 and "--train-gold golld: no row has" in done.stderr
    done = check_training(tmp_path, rows, "--train-gold", "gold")
    assert done.returncode == 1 and "row 1: " in done.stderr and "not checked" not in done.stderr


@pytest.mark.sandbox
def test_data_check_of_the_paper(shared_data):
    done = acpo(
        *("data", "check", "--data-dir", shared_data, "--json"),
        *("--train", shared_data / "dapo_math_17k.jsonl"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {entry["benchmark"]: entry for entry in json.loads(done.stdout)}
    assert list(found) == list(PAPER)
    for name, entry in found.items():
        assert entry["problem"] is None
        assert entry["rows"] == entry["gold"] == entry["gold_right"] == TASKS[name].test.rows
        assert len(entry["overlaps"]) == entry["sharing_an_ngram"] >= entry["sharing_half"]
    restated = {name: entry["sharing_half"] for name, entry in found.items()}
    assert restated["math500"] > 0 and restated["hmmt25"] == restated["aime25"] == 0


def test_data_check_fails_on_wrong_gold(tmp_path):
    path = sums(tmp_path / "sums.jsonl", 2)
    path.write_text(path.read_text() + '{"problem": "x", "answer": "$$"}\n')
    done = acpo("data", "check", "--benchmarks", path)
    assert done.returncode == 1 and "2 of 3" in done.stdout


@pytest.mark.parametrize(
    ("written", "gold"),
    [
        ("1,234", "1234"),
        ("$-1,234,567.50", "$-1234567.50"),
        ("1,200 or 13,400", "1200 or 13400"),
        ("(1,2)", "(1,2)"),
        ("(1,200)", "(1,200)"),
        ("3, 5", "3, 5"),
        ("1,2,300", "1,2,300"),
        ("10,20,30", "10,20,30"),
    ],
)
def test_canonical_reads_the_gold_of_gsm8k(written, gold):
    row = {"question": "q", "answer": f"long\n#### {written}"}
    read = canonical(row, Columns("question", "answer"), "here", needed=True)
    assert read["answer"] == gold


def test_commas_in_the_settings_of_a_task_are_its_own(tmp_path):
    """Those in brackets: others part the names."""
    (tmp_path / "own.py").write_text(
        "from acpo.tasks import Task\n"
        "def sums(name, numbers=(), kind=None):\n"
        "    rows = [{'problem': f'{n} {kind}', 'answer': n} for ns in numbers for n in ns]\n"
        "    return Task(name=name, problems=rows)\n"
    )
    file = f"{tmp_path}/own.py:sums"
    names = f"{file}?name=a&numbers=[[1,2],[3]]&kind={{x: 1, y: 2}}, {file}?name=b&numbers=[[4]]"
    done = acpo("data", "check", "--benchmarks", names, "--json")
    assert done.returncode == 0, done.stderr
    found = [(entry["benchmark"], entry["rows"]) for entry in json.loads(done.stdout)]
    assert found == [("a", 3), ("b", 1)]
