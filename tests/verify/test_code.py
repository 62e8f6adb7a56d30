"""Code problems: reading, rewriting, comparing, running."""

import json

import pytest

from acpo.verify import CodeProblem, Limits, Outcome, code, read_problem, rewards
from acpo.verify.code import CodePool, judge_code
from acpo.verify.compare import matches
from acpo.verify.problem import ProblemError
from acpo.verify.rewrite import Case, Untranslatable, cases_from_test
from acpo.verify.runner import decode, encode
from acpo.verify.sandbox import Execution
from verify.sandboxed import ADD, backend, judge

HUMANEVAL = {
    "task_id": "Test/0",
    "prompt": 'def scale(xs: list, k: int) -> list:\n    """Scale."""\n',
    "entry_point": "scale",
    "test": (
        "METADATA = {'author': 'x'}\n\n\n"
        "def check(candidate):\n"
        "    assert candidate([1, 2], 2) == [2, 4]\n"
        "    assert candidate([], 2) == [], 'message'\n"
        "    assert True, 'filler'\n"
        "    assert not candidate([], 3)\n"
        "    assert candidate([0.1], 3)\n"
    ),
}


@pytest.mark.parametrize(
    ("test", "case"),
    [
        ("assert f(1) == 2", Case("f(1)", 2)),
        ("assert 2 == f(1)", Case("f(1)", 2)),
        ("assert f(1) is None", Case("f(1)", None)),
        ("assert f(1) + f(2) == -6", Case("f(1) + f(2)", -6)),
        ("assert sorted(f(1)) == [1]", Case("sorted(f(1))", [1])),
        ("assert f(x=1) == (1, {'a': {2}})", Case("f(x=1)", (1, {"a": {2}}))),
        ("assert f(1) == set(['a'])", Case("f(1)", {"a"})),
        ("assert f(1) == (1, 1 / 4)", Case("f(1)", (1, 0.25))),
        ("assert f(1)", Case("f(1)", rule="truthy")),
        ("assert not f(1)", Case("f(1)", rule="falsy")),
        ("assert f(1)[0] == 2", Case("f(1)[0]", 2)),
        ("assert (f(1), f(2)) == (3, 4)", Case("(f(1), f(2))", (3, 4))),
        ("assert round(f(1), 2) == 0.5", Case("round(f(1), 2)", 0.5)),
        ("assert math.isclose(f(1), 0.5)", Case("f(1)", 0.5, "close")),
        ("assert math.isclose(f(1), 2, rel_tol=0.1)", Case("f(1)", 2, "close", 0.1)),
        ("assert abs(f(1) - 0.5) < 1e-6", Case("f(1)", 0.5, "close", 0.0, 1e-6)),
        ("assert abs(0.5 - f(1)) <= 1e-6", Case("f(1)", 0.5, "close", 0.0, 1e-6)),
    ],
)
def test_asserts_become_cases(test, case):
    assert cases_from_test(test, "f") == (case,)


@pytest.mark.parametrize(
    "test",
    [
        "for i in range(3):\n    assert f(i) == i",
        "x = 1\nassert f(x) == 1",
        "assert f(1) == g(1)",
        "assert f(1) != 2",
        "assert f(1) == f(2)",
        "assert isinstance(f(1), list)",
        "assert f(1).startswith('q')",
        "assert not f(1) == 2",
        "assert not len(f(1))",
        "assert f(1) - 2 == 0",
        "assert (f(1) == 2) == True",
        "assert [f(1), 3] == [2, 3]",
        "assert f(lambda: 1) == helper",
        "assert all(f(i) for i in range(3))",
        "assert f(1) == [0] * 100_000_000",
        "assert f(1) == 100_000_000 * 'x'",
        "assert f(1) == bytes(10_000_000_000)",
    ],
)
def test_other_asserts_stay_asserts(test):
    with pytest.raises(Untranslatable):
        cases_from_test(test, "f")
    row = {"raw_problem": "", "new_problem": "", "test_code": "assert f(0) == 0\n" + test}
    assert read_problem(row).assert_mode


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -1, 2**53, -(2**80), 1.5, -0.0, float("inf"), 1 + 2j, "x\ud800", b"\xff",
        [], [1, [2.0]], (1, (2,)), {1, 2}, frozenset({"a"}), {"a": [1], (1, 2): None},
    ],
)  # fmt: skip
def test_values_cross_the_border_unchanged(value):
    data = json.loads(json.dumps(encode(value)))
    back = decode(data)
    assert (type(back), back) == (type(value), value)
    assert matches(data, value, "equal")


def test_only_plain_values_match():
    class Sly(int):
        pass

    assert not matches(encode(Sly(3)), 3, "equal")
    assert not matches(encode(object()), None, "equal")
    for data in ([3], 3.0, {"int": 3}, {"a": 1, "b": 2}, {}, {"list": 3}, {"list": [[]]}, "x" * 9):
        assert not matches(data, 3, "equal")
        assert not matches(data, [3], "equal")
    forged = {"list": [{"int": '0x1),int("0x2'}]}
    assert not matches(forged, [1, 2], "equal")
    for rule in ("truthy", "falsy", "close"):
        assert not matches(encode(object()), 1, rule)
        assert not matches({"unheard": [1]}, 1, rule)


def test_numeric_rule_lets_ints_and_floats_meet_but_not_bools():
    assert matches(encode([1, 2.0]), [1.0, 2], "numeric")
    assert matches(encode({1.0: 2}), {1: 2.0}, "numeric")
    assert not matches(encode([True]), [1], "numeric")
    assert not matches(encode(1.5), 1, "numeric")


def test_hostile_hashes_cost_nothing():
    """Numbers that collide in a hash table are only sorted here."""
    colliding = [{"int": hex(n * (2**61 - 1))} for n in range(1, 20_000)]
    assert not matches({"set": colliding}, {1}, "equal")


def test_problems_that_are_none():
    for row in ({}, {"test_code": "f("}, {"test_code": "pass"}, {"inputs": [], "outputs": []}):
        with pytest.raises(ProblemError):
            read_problem(row)
    with pytest.raises(ProblemError, match="2 kinds"):
        CodeProblem(cases=(Case("f()"),), assert_source="assert f()")
    with pytest.raises(ProblemError, match="as many outputs"):
        read_problem({"inputs": ["1"], "outputs": []})


@pytest.mark.sandbox
def test_a_problem_that_cannot_be_read_is_nobodys_fault():
    verdict = judge_code("x = 1", {"test_code": "assert ("}, backend())
    assert verdict.outcome is Outcome.UNPARSEABLE_GOLD
    assert verdict.reward() is None


@pytest.mark.sandbox
def test_humaneval_style():
    problem = read_problem(HUMANEVAL)
    assert [case.rule for case in problem.cases] == ["numeric", "numeric", "falsy", "truthy"]
    right = "    return [x * k for x in xs]\n"
    assert judge_code(right, HUMANEVAL, backend()).correct
    full = HUMANEVAL["prompt"] + right
    assert judge_code(f"```python\n{full}```", HUMANEVAL, backend()).correct
    future = "from __future__ import annotations\n" + full
    assert judge_code(f"```python\n{future}```", HUMANEVAL, backend()).correct
    assert not judge_code("    return xs\n", HUMANEVAL, backend()).correct


@pytest.mark.sandbox
def test_helpers_of_the_prompt_are_there_for_solution_and_test():
    row = {
        "prompt": ('def double(x):\n    return 2 * x\n\n\ndef quad(x):\n    """Four times x."""\n'),
        "entry_point": "quad",
        "test": (
            "def check(candidate):\n"
            "    for x in range(5):\n        assert candidate(x) == double(double(x))\n"
        ),
    }
    assert read_problem(row).assert_mode
    assert judge_code(
        "```python\ndef quad(x):\n    return double(double(x))\n```", row, backend()
    ).correct
    assert not judge_code("    return double(x)\n", row, backend()).correct


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        ("ValueError('no')", Outcome.CORRECT),
        ("TypeError('no')", Outcome.INCORRECT),
        ("UnicodeDecodeError('utf-8', b'', 0, 1, 'x')", Outcome.INCORRECT),
        ("SystemExit(0)", Outcome.INCORRECT),
        ("type('ValueErrors', (Exception,), {})()", Outcome.INCORRECT),
    ],
)
def test_assert_mode_raises_what_the_solution_raised(raised, outcome):
    test = "try:\n    add(1, 2)\nexcept ValueError:\n    pass\nelse:\n    assert False\n"
    row = {**ADD, "test_code": test}
    assert read_problem(row).assert_mode
    assert judge(f"def add(a, b): raise {raised}", row).outcome is outcome


def test_assert_mode_shows_changed_arguments():
    test = "xs = [3, 1, 2]\nadd(xs, 0)\nassert xs == [1, 2, 3]\n"
    row = {**ADD, "test_code": test}
    assert judge("def add(a, b): a.sort()", row).correct
    assert not judge("def add(a, b): return sorted(a)", row).correct


@pytest.mark.sandbox
def test_scripts():
    row = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7"]}
    assert judge("print(sum(map(int, input().split())))", row).correct
    assert judge(
        "if __name__ == '__main__':\n    print(sum(map(int, input().split())))", row
    ).correct
    assert judge(
        "import sys\nprint(sum(map(int, sys.stdin.read().split())))\nsys.exit()", row
    ).correct
    assert not judge("print(3)", row).correct
    assert not judge(
        "print('3', end='')\nprint(' ')", {"inputs": [""], "outputs": ["3\n3"]}
    ).correct


@pytest.mark.sandbox
def test_runs_do_not_see_each_other():
    """Every solution gets its own sandbox: nothing one leaves is there for the next."""
    leave = "import os, tempfile\nopen('/tmp/left', 'w').write('x')\ndef add(a, b): return a + b"
    look = "import os\ndef add(a, b): return a + b if not os.path.exists('/tmp/left') else 0"
    with CodePool(1, backend()) as pool:
        verdicts = pool.verify_all([(f"```python\n{c}\n```", ADD) for c in (leave, look, look)])
    assert [verdict.outcome for verdict in verdicts] == [Outcome.CORRECT] * 3


class Silent:
    """A backend that runs nothing and passes everything."""

    limits = Limits()

    def run_calls(self, sources, expressions, accept):
        for _ in expressions:
            accept({"value": 3})
        return Execution(None, None, 0.0)


def test_a_row_is_read_once_for_its_completions(monkeypatch):
    read: list[dict] = []
    original = code.read_problem
    monkeypatch.setattr(code, "read_problem", lambda row: read.append(row) or original(row))
    solution = "```python\ndef add(a, b): return 3\n```"
    rows = [{**ADD, "test_code": f"assert add({n}, 2) == 3\n"} for n in range(3)]
    columns = {name: [row[name] for row in rows for _ in range(8)] for name in ADD}
    columns["completion_ids"] = [[number] for number in range(24)]  # which TRL always gives
    with CodePool(4, Silent()) as pool:
        reward = rewards._reward(lambda: pool, rewards._code_pairs, 0.0, False)
        assert reward(["?"] * 24, [solution] * 24, **columns) == [1.0] * 24
    assert len(read) == 3
    bad = {**ADD, "test_code": "assert"}
    with CodePool(2, Silent()) as pool:
        verdicts = pool.verify_all([(solution, row) for row in (rows[0], bad, bad, rows[1])])
    assert [v.outcome for v in verdicts] == ["correct", *["unparseable_gold"] * 2, "correct"]
