"""Bad references are nobody's fault: no reward, a count, a named row, and nothing else lost."""

import gc
import json
import logging
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner

from acpo.cli import app
from acpo.tasks import get_task
from acpo.verify import Outcome, read_problem, rewards
from acpo.verify.problem import ProblemError, code_in_prompt
from acpo.verify.references import bad_references
from verify.sandboxed import ADD, backend, judge

DEEP = "assert add(" + "(" * 5000 + "1" + ")" * 5000 + ", 2) == 3"
UNREADABLE = [
    "",
    "nan",
    "NaN",
    "inf",
    "-inf",
    "None",
    "\\frac{",
    "??",
    "a)} nonsense {",
    "The total cannot be told from the text.",
    "%",
    "4 = 5",
    "x = 4 = 5",
    "\\pi = 3.14",
]
READABLE = {
    "1e-05": "0.00001",
    "The answer is 18.": "18",
    "#### 18": "18",
    "Some work. $\\boxed{18}$": "18",
    "18 apples": "18",
    "x = 10 + 8 = 18": "18",
    "\\text{June 20}": "June 20",
}


def test_golds_that_cannot_be_read(pool):
    outcomes = [v.outcome for v in pool.verify_all(("\\boxed{18}", gold) for gold in UNREADABLE)]
    assert outcomes == [Outcome.UNPARSEABLE_GOLD] * len(UNREADABLE)


def test_golds_as_data_hold_them(pool):
    jobs = [(f"\\boxed{{{answer}}}", gold) for gold, answer in READABLE.items()]
    assert [v.outcome for v in pool.verify_all(jobs)] == [Outcome.CORRECT] * len(jobs)
    jobs = [("\\boxed{17}", gold) for gold in READABLE]
    assert [v.outcome for v in pool.verify_all(jobs)] == [Outcome.INCORRECT] * len(jobs)


@pytest.mark.parametrize(
    "row",
    [
        {"test_code": DEEP},
        {"test_code": "assert f(" + "-" * 10**5 + "1) == 1"},
        {"test_code": "assert f(1) == 1\x00"},
        {"test_code": 5},
        {"entry_point": "f", "test": None, "test_code": None},
        {"test_code": "assert f(1) == 1/0"},
        {"test_code": "assert f(1) == 1.0 * 1" + "0" * 400},
        {"entry_point": "f", "test": "def check():\n    assert f(1) == 1\n"},
        {"entry_point": "f", "test": "def check(candidate):\n    assert candidate(1) == 1/0\n"},
        {"entry_point": 5, "test": "def check(candidate):\n    assert candidate(1) < 1\n"},
        {"inputs": "not json", "outputs": "[]"},
        {"inputs": '"1"', "outputs": '"2"'},
        {"inputs": [["1", "2"]], "outputs": ["3"]},
        {"inputs": [None], "outputs": ["3"]},
    ],
)
def test_code_problems_that_cannot_be_read(row):
    with pytest.raises(ProblemError):
        read_problem(row)


UNITTEST = (
    "import unittest\n\n\nclass TestCases(unittest.TestCase):\n"
    "    def test_it(self):\n        self.assertEqual(f(1), 2)\n        assert f(1) == 2\n"
)


PAIR = "def check(candidate):\n    assert (candidate(1) == 2, 'why')\n"


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ({"test_code": "def test_it():\n    assert f(1) == 2\n"}, "no assert that can run"),
        ({"test_code": UNITTEST}, "no assert that can run"),
        ({"test_code": UNITTEST + "unittest.main()\n"}, "no assert that can run"),
        ({"test_code": "f(1)\nassert True\n"}, "no assert that can run"),
        ({"test": "def check(candidate):\n    pass\n# assert"}, "no assert that can run"),
        ({"test": "def check(candidate):\n    assert True\n"}, "no assert that can run"),
        ({"test": PAIR}, "no assert that can run"),
        ({"test": UNITTEST}, r"no check\(candidate\)"),
        ({"test": "def check():\n    assert f(1) == 2\n"}, r"no check\(candidate\)"),
    ],
)
def test_asserts_that_never_run_are_no_test(test, reason):
    with pytest.raises(ProblemError, match=f"^the test has {reason}"):
        read_problem({"entry_point": "f", "prompt": "def f(x):\n", **test})


RIGHT, OTHER = "def f(x): return 2 * x", "def f(x): return 99"
HELPED = "def near(a, b):\n    if abs(a - b) > 1e-9: raise AssertionError\n"


@pytest.mark.sandbox
@pytest.mark.parametrize(
    "test",
    [
        "def test_it():\n    assert f(1) == 2\ntest_it()\n",
        "def check():\n    assert f(1) == 2\ncheck()\n",
        "def test_it():\n    assert f(1) == 2\nfor x in list(globals()):\n"
        "    if x.startswith('test_'): globals()[x]()\n",
        f"{HELPED}near(f(1), 2)\n",
        f"{UNITTEST}TestCases('test_it').debug()\n",
        "from math import isclose\nfor x in (1, 2):\n    assert isclose(f(x), 2 * x)\n",
    ],
)
def test_asserts_that_are_called_do_test(test):
    row = {"new_problem": "def f(x):\n", "test_code": test}
    assert judge(RIGHT, row).correct
    assert judge(OTHER, row).outcome is Outcome.INCORRECT


@pytest.mark.sandbox
@pytest.mark.parametrize(
    "body", ["assert 1 + 1 == 2", "assert missing(1) == 2", "return\n    assert candidate(1) == 2"]
)
def test_a_test_that_calls_nothing_judges_nothing(body):
    row = {"entry_point": "f", "test": f"def check(candidate):\n    {body}\n"}
    for code in (RIGHT, OTHER):
        verdict = judge(code, row)
        assert verdict.outcome is Outcome.UNPARSEABLE_GOLD
        assert "never called f" in verdict.detail
    assert judge("raise ValueError\ndef f(x): return 2", row).outcome is Outcome.INCORRECT
    forged = "import os\nfor n in range(3, 99):\n    try: os.write(n, b'{\"failed\": 1}\\n')\n"
    forged += "    except OSError: pass\ndef f(x): return 2"
    assert judge(forged, row).outcome is Outcome.INCORRECT


@pytest.mark.sandbox
def test_columns_of_mixed_sets_and_json_lists():
    mixed = {**ADD, "test": None, "entry_point": None, "inputs": None, "outputs": None}
    assert judge("def add(a, b): return a + b", mixed).correct
    script = {"inputs": json.dumps(["1\n", "2\n"]), "outputs": json.dumps(["2", 4])}
    assert judge("print(2 * int(input()))", {**script, "test_code": None}).correct


def test_one_bad_row_loses_no_batch(caplog):
    completions = ["\\boxed{7}", None, [], [{"role": "assistant", "content": None}]]
    assert rewards.math_correct(["?"] * 4, completions, answer=["7"] * 4) == [1.0, 0.0, 0.0, 0.0]
    rewards._name_once.cache_clear()
    with caplog.at_level(logging.WARNING, "acpo.verify.rewards"):
        for _ in range(2):
            values = rewards.math_correct(["?"] * 2, ["\\boxed{7}"] * 2, answer=[7, float("nan")])
    assert values == [1.0, None]
    assert [record.getMessage()[:14] for record in caplog.records] == ["the gold 'nan'"]


@pytest.mark.sandbox
def test_one_bad_problem_loses_no_batch(caplog):
    backend()  # or skip: it is this machine's that the reward functions take
    tests = [ADD["test_code"], DEEP]
    completions = ["def add(a, b): return a + b"] * 2
    with caplog.at_level(logging.WARNING, "acpo.verify.rewards"):
        values = rewards.code_correct(["?"] * 2, completions, test_code=tests, id=[1, "deep"])
    assert values == [1.0, None]
    assert "id='deep'" in caplog.text


def test_bad_references_are_found_and_named(tmp_path):
    rows = [
        {"problem": f"{n}?", "answer": gold} for n, gold in enumerate(["1", None, "\\frac{", "x^2"])
    ]
    rows += [{"problem": "f?", "test_code": "broken ("}, {"problem": "g?", **ADD}]
    golds = [row.get("answer") or "" for row in rows]
    assert [row for row, _ in bad_references(rows, golds, 1)] == [2, 3, 5]
    assert [row for row, _ in bad_references(rows, None, 1)] == [5]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps({"problem": "1+1?", "answer": "2"}) + "\n")
    arguments = ["data", "check", "--benchmarks", str(own), "--train", str(path), "--workers", "1"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert "3 of 6 rows cannot be judged against" in done.output
    assert "row 3: " in done.output


def test_the_code_in_a_prompt():
    code = 'import math\n\n\ndef f(x):\n    """Doc."""\n'
    asked = [code, f"Complete:\n```python\n{code}```\nThanks.", f"Complete this:\n\n{code}"]
    assert [code_in_prompt(prompt, "f").strip() for prompt in asked] == [code.strip()] * 3
    assert code_in_prompt("def f(x):", "f") == "def f(x):"
    assert code_in_prompt("Write f.", "f") == "Write f."


@pytest.mark.sandbox
def test_a_body_may_bring_functions_along():
    row = {
        "prompt": "def helper(x):\n",
        "entry_point": "f",
        "test": "def check(c):\n    assert c(1) == 2\n",
    }
    assert judge("    return 2 * x\n\n\ndef f(x):\n    return helper(x)", row).correct


def test_problems_are_read_in_many_threads():
    """A collection inside `ast.parse` lets other threads in; CPython 3.11 does not bear it."""
    row = {"entry_point": "add", "test": "assert add([[0, 1], [1, 0]], [[1]]) == 6\n" * 20}
    threshold = gc.get_threshold()

    def let_others_in(*_) -> None:
        time.sleep(0)

    gc.callbacks.append(let_others_in)
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(8) as threads:
            problems = list(threads.map(read_problem, [row] * 400))
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(let_others_in)
    assert all(len(problem.cases) == 20 for problem in problems)


def test_a_data_file_that_begins_with_a_bad_problem_is_code_still(tmp_path):
    path = tmp_path / "odd.jsonl"
    row = {"problem": "f?", "entry_point": "f", "test": "def check():\n    assert f(1) == 1\n"}
    path.write_text(json.dumps(row) + "\n")
    assert get_task(str(path)).grader == "code"
    path.write_text(json.dumps({**row, "answer": "1"}) + "\n")
    assert get_task(str(path)).grader == "math"
