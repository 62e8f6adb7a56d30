"""Attacks 27 to 30: odd values, odd text, odd places for the code."""

from dataclasses import replace

import pytest

from acpo.verify.code import CodePool, judge_code
from acpo.verify.verdict import Outcome
from verify.sandboxed import ADD, SHORT, backend, judge

pytestmark = pytest.mark.sandbox


def test_attack_27_exception_where_nothing_is_expected():
    nothing = {**ADD, "test_code": "assert add(1, 2) == None\nassert add(2, 3) == ''\n"}
    assert judge("def add(a, b): raise ValueError", nothing).outcome is Outcome.INCORRECT
    empty = {"inputs": [""], "outputs": [""]}
    assert judge("raise ValueError", empty).outcome is Outcome.INCORRECT
    assert judge("import sys\nsys.exit(1)", empty).outcome is Outcome.INCORRECT
    assert judge("import os\nos.abort()", empty).outcome is Outcome.INCORRECT
    assert judge("this is no python", empty).outcome is Outcome.INCORRECT
    assert judge("pass", empty).outcome is Outcome.CORRECT


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("True", "1"),
        ("1", "True"),
        ("1.0", "1"),
        ("1", "1.0"),
        ("0", "False"),
        ("[True]", "[1]"),
        ("{1: True}", "{1: 1}"),
        ("{True: 1}", "{1: 1}"),
        ("(1, 2)", "[1, 2]"),
        ("{1, 2}", "[1, 2]"),
        ("frozenset([1])", "{1}"),
        ("b'x'", "'x'"),
        ("float('nan')", "1.0"),
        ("float('inf')", "1e308"),
        ("complex(1, 0)", "1"),
    ],
)
def test_attack_28_values_of_the_wrong_type(returned, expected):
    problem = {**ADD, "test_code": f"assert add(1, 2) == {expected}\n"}
    assert judge(f"def add(a, b): return {returned}", problem).outcome is Outcome.INCORRECT
    assert judge(f"def add(a, b): return {expected}", problem).outcome is Outcome.CORRECT


def test_attack_28_nan_and_signed_zero():
    nan = {**ADD, "test_code": "assert add(1, 2) == float('nan')\n"}
    assert judge("def add(a, b): return float('nan')", nan).outcome is Outcome.INCORRECT
    close = {**ADD, "test_code": "import math\nassert math.isclose(add(1, 2), 0.5)\n"}
    for value in ("float('nan')", "float('inf')", "True", "'0.5'", "None", "[0.5]"):
        assert judge(f"def add(a, b): return {value}", close).outcome is Outcome.INCORRECT
    zero = {**ADD, "test_code": "assert add(1, 2) == 0.0\n"}
    assert judge("def add(a, b): return -0.0", zero).outcome is Outcome.CORRECT
    assert judge("def add(a, b): return 5e-324", zero).outcome is Outcome.INCORRECT


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("def add(a, b):\n    return a + b\n", Outcome.CORRECT),
        ("\ufeffdef add(a, b):\n    return a + b\n", Outcome.CORRECT),
        ("def add(a, b):\r\n\treturn a + b\r\n", Outcome.CORRECT),
        ("def add(a, b):\n    return a + b\n\x00", Outcome.INCORRECT),
        ("def add(a, b):\n\tif a:\n        return a + b\n", Outcome.INCORRECT),
        ("def add(a, b):\n    return a + b  # \udcff\ud800\n", Outcome.INCORRECT),
        ("\u202edef add(a, b):\n    return a + b\n", Outcome.INCORRECT),
        ("def \u0430dd(a, b):\n    return a + b\n", Outcome.INCORRECT),
    ],
)
def test_attack_29_odd_text(text, outcome):
    assert judge_code(text, ADD, backend()).outcome is outcome


def test_attack_29_odd_output():
    scripts = {"inputs": [""], "outputs": ["x"]}
    for printed in (b"\xff\xfe", b"x\x00", b"\xef\xbb\xbfx", b"\x1b[2Kx"):
        code = f"import os\nos.write(1, {printed!r})"
        assert judge(code, scripts).outcome is Outcome.INCORRECT
    assert judge("print('x  \\r\\n\\n')", scripts).outcome is Outcome.CORRECT


HONEST = "def add(a, b):\n    return a + b"
WRONG = "def add(a, b):\n    return 0"


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("", Outcome.INCORRECT),
        ("   \n ", Outcome.INCORRECT),
        ("I cannot do that.", Outcome.INCORRECT),
        (f"```python\n{HONEST}\n```", Outcome.CORRECT),
        (f"```\n{HONEST}\n```", Outcome.CORRECT),
        (f"~~~py\n{HONEST}\n~~~", Outcome.CORRECT),
        (f"```python\n{WRONG}\n```\nBetter:\n```python\n{HONEST}\n```", Outcome.CORRECT),
        (f"```python\n{HONEST}\n```\nBetter:\n```python\n{WRONG}\n```", Outcome.INCORRECT),
        (f"```python\n{HONEST}\n```\nUse it:\n```python\nprint(add(1, 2))\n```", Outcome.CORRECT),
        (f"```python\n{HONEST}\n```\nOutput:\n```text\n3\n```", Outcome.CORRECT),
        (f"Here:\n```python\n{HONEST}", Outcome.CORRECT),
        (f"<think>\n```python\n{HONEST}\n```\n</think>\nDone.", Outcome.INCORRECT),
        (f"<think>\n```python\n{WRONG}\n```\n</think>\n```python\n{HONEST}\n```", Outcome.CORRECT),
        (f"<think>\n```python\n{HONEST}\n```", Outcome.INCORRECT),
        (f"```python\ndef add(a, b):\n    pass\n{HONEST}\n```", Outcome.CORRECT),
        ("    return a + b\n", Outcome.CORRECT),
        ("```python\n```", Outcome.INCORRECT),
        (f"```bash\nrm -rf /\n```\n```python\n{HONEST}\n```", Outcome.CORRECT),
        ("```json\n{}\n```", Outcome.INCORRECT),
        ("x" * 200_000, Outcome.LIMIT),
    ],
)
def test_attack_30_where_the_code_is(text, outcome):
    assert judge_code(text, ADD, backend()).outcome is outcome


def test_neighbours_of_an_attack_are_not_touched():
    """Honest solutions next to fork bombs, floods and hangs all pass."""
    hostile = [
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "while True: pass",
        "x = bytearray(10 ** 10)",
    ]
    jobs = []
    for index in range(30):
        jobs.append((f"```python\n{HONEST}\n```", ADD))
        if index % 10 == 0:
            jobs.append((f"```python\n{hostile[index // 10]}\n```", ADD))
    with CodePool(2, backend(replace(SHORT, wall_seconds=15.0))) as pool:
        verdicts = pool.verify_all(jobs)
    honest = [v.outcome for v, (text, _) in zip(verdicts, jobs, strict=True) if HONEST in text]
    assert honest == [Outcome.CORRECT] * 30
