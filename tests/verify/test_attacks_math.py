"""Attacks 31 to 42: answers that hang, blow up or slip past a comparison."""

import resource
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from acpo.verify import MathPool, Outcome, verify_math
from acpo.verify.extract import extract_answer
from acpo.verify.math import MathJob, decide_without_algebra

STOPPED = (Outcome.TIMEOUT, Outcome.LIMIT)


@pytest.fixture(scope="module")
def pool():
    with MathPool(2, cpu_seconds=1.0) as made:
        made.verify("\\boxed{x+x}", "2x").result()  # the start is not timed below
        yield made


def boxed(pool: MathPool, answer: str, gold: str = "7"):
    return pool.verify(f"So \\boxed{{{answer}}}.", gold).result()


def bare_math_verify_hangs(answer: str, seconds: float = 2.0) -> bool:
    """Whether bare math-verify, in a thread as reward functions run it, is still busy then."""
    code = (
        "import sys, threading\nfrom math_verify import parse, verify\n"
        "def job(text): verify(parse('7', parsing_timeout=None), "
        "parse(text, parsing_timeout=None), timeout_seconds=None)\n"
        "job('8')\nprint('ready', flush=True)\n"
        "thread = threading.Thread(target=job, args=[sys.argv[1]])\n"
        "thread.start(); thread.join()\n"
    )
    command = [sys.executable, "-c", code, f"$\\boxed{{{answer}}}$"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        finally:
            process.kill()
    return False


TOWERS = [
    "10^{10^{10}}",
    "9^{9^{9^{9}}}",
    "2^{2^{2^{2^{2^{2}}}}}",
    "((((10^{10})^{10})^{10})^{10})^{10}",
    "10^{-10^{10}}",
    "(1+10^{-9})^{10^{12}}",
    "\\sin(10^{10^{10}})",
    "10^{10^{10}} - 10^{10^{10}} + 7",
]


@pytest.mark.parametrize("answer", TOWERS)
def test_attack_31_power_towers(pool, answer):
    start = time.monotonic()
    assert boxed(pool, answer).outcome is not Outcome.CORRECT
    assert time.monotonic() - start < 60


def test_attack_31_is_one():
    assert bare_math_verify_hangs("10^{10^{10}}")


BLOW_UPS = [
    "99999999!",
    "(9999!)!",
    "10^9!",
    "100000!!",
    "(10^9)!!",
    "(9999!)!!",
    "((3!)!)!!!",
    "5" + "!" * 1900,
    "\\sum_{k=1}^{2} (10^9)!!",
    "\\binom{10^9}{5 \\cdot 10^8}",
    "\\binom{1000000}{500000}",
    "\\prod_{k=1}^{1000000} k",
    "\\sum_{k=1}^{10^9} \\frac{1}{k}",
]


@pytest.mark.parametrize("answer", BLOW_UPS)
def test_attack_32_factorials_and_binomials(pool, answer):
    assert boxed(pool, answer).outcome in (*STOPPED, Outcome.INCORRECT)


def test_a_gold_that_is_too_large_a_factorial_is_told(pool):
    for gold in ("10^9!", "100000!!"):
        assert boxed(pool, "7", gold).outcome is Outcome.UNPARSEABLE_GOLD


def test_attack_32_from_many_threads(pool):
    found = []

    def ask():
        found.append(boxed(pool, "99999999!").outcome)
        found.append(boxed(pool, "x+x", "2x").outcome)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert Counter(found) == {Outcome.LIMIT: 8, Outcome.CORRECT: 8}


def test_attack_33_nesting_and_size(pool):
    hostile = [
        "{" * 10**5 + "}" * 10**5,
        "{" * 10**5,
        "\\frac{" * 5000 + "1" + "}{2}" * 5000,
        "(" * 3000 + "7" + ")" * 3000,
        "7" * 10**6,
        "7+" * 5 * 10**5 + "0",
        "\\sqrt{" * 500 + "7" + "}" * 500,
        "x" * 10**6,
        "1" * 1000,
    ]
    for answer in hostile:
        start = time.monotonic()
        assert boxed(pool, answer).outcome in (Outcome.LIMIT, Outcome.INCORRECT)
        assert time.monotonic() - start < 60
    nested = "\\sqrt{" * 30 + "7" + "}" * 30
    assert boxed(pool, nested).outcome is not Outcome.CORRECT


PAYLOADS = [
    "__import__('os').system('touch {path}')",
    "().__class__.__bases__[0].__subclasses__()",
    "eval('7')",
    "exec('7')",
    "\\text{{__import__('os').system('touch {path}')}}",
    "lambda: 7",
    "(lambda: 7)()",
    "[c for c in ().__class__.__base__.__subclasses__()]",
    "open('{path}', 'w').write('7')",
    "\\operatorname{{__import__}}('os')",
    "7 if open('{path}','w') else 7",
    "Symbol('x')._eval_power.__globals__",
]


@pytest.mark.parametrize("payload", PAYLOADS)
def test_attack_34_python_payloads(pool, payload, tmp_path):
    path = tmp_path / "won"
    answer = payload.format(path=path)
    for text in (f"\\boxed{{{answer}}}", f"Answer: {answer}", f"#### {answer}"):
        assert pool.verify(text, "7").result().outcome is Outcome.INCORRECT
        assert pool.verify("\\boxed{7}", answer).result().outcome is not Outcome.CORRECT
    assert not path.exists()


def matrix(size: int) -> str:
    rows = " \\\\ ".join(" & ".join(f"x_{{{i}}}^{{{j}}}" for j in range(size)) for i in range(size))
    return f"\\begin{{pmatrix}} {rows} \\end{{pmatrix}}"


@pytest.mark.parametrize(
    "answer",
    [
        f"\\det {matrix(9)}",
        f"{matrix(6)}^{{50}}",
        f"{matrix(8)}^{{-1}}",
        matrix(40),
    ],
)
def test_attack_35_matrix_bombs(pool, answer):
    start = time.monotonic()
    assert boxed(pool, answer).outcome is not Outcome.CORRECT
    assert time.monotonic() - start < 60


def test_attack_36_many_boxes_and_hedges(pool):
    many = " ".join(f"\\boxed{{{n}}}" for n in range(500))
    assert pool.verify(many, "7").result().outcome is Outcome.INCORRECT
    assert pool.verify(many, "499").result().outcome is Outcome.CORRECT
    hedges = [
        "\\boxed{7 \\text{ or } 8}",
        "\\boxed{7, 8}",
        "\\boxed{\\{7, 8\\}}",
        "\\boxed{7} or maybe \\boxed{8}",
        "\\boxed{7 \\boxed{8}}",
        "Answer: 7 or 8",
        "Answer: 7\nAnswer: 8",
        "#### 7 or 8",
        "#### 7\n#### 8",
        "\\boxed{@@ 6 or @@ 7}",
        "\\boxed{The final answer is $7$. I hope it is correct, or $8$}",
        "\\boxed{" + ", ".join(map(str, range(200))) + "}",
        "\\boxed{x \\in \\mathbb{Z}}",
        "\\boxed{7 \\lor 8}",
        "\\boxed{6 \\to 7}",
    ]
    for text in hedges:
        assert pool.verify(text, "7").result().outcome is Outcome.INCORRECT, text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\\boxed{}",
        "\\boxed{ }",
        "\\boxed{\\text{}}",
        "\\boxed",
        "\\boxed{7",
        "\\boxed{7} so \\boxed{",
        "<think>\\boxed{7}</think>",
        "<think>\\boxed{7}</think> I give up.",
        "<think> so it is \\boxed{7}",
        "<think>\\boxed{7}</think>\\boxed{}",
        "7",
        "The result is 7.",
        "Answer:",
        "Answer: \n",
        "####",
        "#### \n7",
    ],
)
def test_attack_37_no_answer_where_one_belongs(pool, text):
    assert pool.verify(text, "7").result().outcome is Outcome.INCORRECT


@pytest.mark.parametrize("gold", ["", " ", "$$", "\\frac{", "}{", "\\begin{", "10^{10^{10}}", "%"])
def test_attack_38_unparseable_gold(pool, gold):
    verdict = pool.verify("\\boxed{x+1}", gold).result()
    assert verdict.outcome is Outcome.UNPARSEABLE_GOLD
    assert verdict.reward() is None


def test_attack_38_a_gold_that_cannot_be_read_is_judged_by_its_text_alone(pool):
    assert boxed(pool, "5 6", "5 6").outcome is Outcome.CORRECT
    assert boxed(pool, "7" * 401, "5 6").outcome is Outcome.LIMIT
    assert pool.verify("no idea", "5 6").result().outcome is Outcome.INCORRECT
    for answer in ("5", "6", "5, 6", "56", "\\frac{1}{0}", "5 6 7"):
        assert boxed(pool, answer, "5 6").outcome is Outcome.UNPARSEABLE_GOLD


UNDEFINED = [
    *("\\frac{1}{0}", "\\frac{0}{0}", "1/0", "0^{-1}", "\\frac{1}{\\sin 0}", "(-1)!", "e^{1/0}"),
    *(
        "\\infty-\\infty",
        "0\\cdot\\infty",
        "\\frac{\\infty}{\\infty}",
        "\\ln 0",
        "\\log(0)",
        "\\cot 0",
    ),
    *("\\ln(x-x)", "\\frac{x}{0}", "\\frac{1}{x-x}", "\\int_0^1 \\frac{1}{0} dx", "1^{\\infty}"),
    *(
        "\\sum_{k=0}^{1}\\frac{1}{k}",
        "\\sum_{k=1}^{3}\\infty-\\infty",
        "\\prod_{k=0}^{2}\\frac{1}{k}",
    ),
    "\\det\\begin{pmatrix}\\frac{1}{0}&0\\\\0&1\\end{pmatrix}",
    *(
        "\\tan\\frac{\\pi}{2}",
        "\\sec\\frac{\\pi}{2}",
        "\\frac{1}{\\sin\\pi}",
        "\\frac{-1}{\\tan\\pi}",
    ),
]


@pytest.mark.parametrize("gold", [*UNDEFINED, "-\\infty", "7", "x", "y=x"])
def test_what_is_undefined_is_equal_to_its_own_text_alone(pool, gold):
    others = [text for text in UNDEFINED if text != gold]
    verdicts = pool.verify_all((f"\\boxed{{{text}}}", gold) for text in others)
    assert {v.outcome for v in verdicts} <= {Outcome.INCORRECT, Outcome.UNPARSEABLE_GOLD}
    assert not [v.detail for v in verdicts if "ends its worker" in v.detail]
    assert boxed(pool, gold, gold).correct


@pytest.mark.parametrize(
    "gold", ["\\frac{1}{0}", "\\infty-\\infty", "\\ln 0", "(\\frac{0}{0}, 1)", "\\tan(\\pi/2)"]
)
def test_a_gold_without_a_value_is_told(pool, gold):
    verdict = boxed(pool, "7", gold)
    assert verdict.outcome is Outcome.UNPARSEABLE_GOLD and "has no value" in verdict.detail


@pytest.mark.parametrize(
    "answer", ["\\sqrt{-\\infty}", "\\sqrt[3]{i^2}", "\\sqrt[4]{\\sqrt[3]{-\\infty}}"]
)
def test_complex_values_end_no_worker(pool, answer):
    assert boxed(pool, answer, "\\sqrt{5}").outcome is Outcome.INCORRECT


def test_attack_38_the_answer_cannot_ask_for_it(pool):
    """A sample that leaves its group is not punished, so no answer may cause that."""
    for answer in (*TOWERS, *BLOW_UPS, "}{", "\\frac{", "\x00", "\ud800", "{" * 10**4, "\\left("):
        verdict = pool.verify(f"Answer: {answer}", "x^2+1").result()
        assert verdict.reward() == 0.0, (answer, verdict)


@pytest.mark.parametrize(
    "echo",
    [
        "x<7",
        "x \\le 7",
        "7 \\le x",
        "7 \\ge 7",
        "7 < 8",
        "x \\ne 7",
        "7 = 8",
        "6 \\ne 7",
        "7 > x > 0",
    ],
)
def test_attack_38_gold_echoed_as_inequality(pool, echo):
    assert boxed(pool, echo, "7").outcome is Outcome.INCORRECT


@pytest.mark.parametrize(
    ("gold", "answer", "right"),
    [
        ("50\\%", "0.5", True),
        ("50\\%", "5", False),
        ("5\\text{ cm}", "5\\text{ m}", True),  # units are dropped, as math-verify does
        ("5", "6\\text{ cm}", False),
        ("1,234", "1234", True),
        ("1,234", "1,235", False),
        ("(1,2)", "[1,2]", False),
        ("\\{1,2\\}", "\\{1,2,3\\}", False),
        ("3\\frac{1}{2}", "3.5", True),
        ("3\\frac{1}{2}", "\\frac{3}{2}", False),
    ],
)
def test_attack_39_percent_units_thousands_sets(pool, gold, answer, right):
    assert boxed(pool, answer, gold).correct is right


@pytest.mark.parametrize(
    "answer", ["(x+y+z+w)^{200}", "(a+b+c+d+e)^{60} - 1", "2^{190000}", "(x+1)^{9999}"]
)
def test_attack_40_huge_string_form(pool, answer):
    start = time.monotonic()
    assert boxed(pool, answer, "x+1").outcome in (*STOPPED, Outcome.INCORRECT)
    assert time.monotonic() - start < 60


@pytest.mark.parametrize(
    "term", ["\\frac{1}{%d^{40000}}", "%d^{50000}", "\\frac{1}{9%d!}", "9%d!!", "\\binom{9%d}{400}"]
)
def test_attack_40_costly_numbers_are_not_made_in_the_callers_process(term):
    """Whoever asks has no CPU limit: numbers of many digits are the worker's to compute."""
    primes = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31)
    answer = "+".join(term % prime for prime in primes * 4)
    start = time.process_time()
    assert isinstance(decide_without_algebra(f"\\boxed{{{answer}}}", "7"), MathJob)
    assert time.process_time() - start < 0.5


DEGENERATE = {
    "open boxes": "\\boxed{" * 10**5,
    "dollars": "$" * 10**6,
    "brackets": "\\[" * 10**5,
    "answers": "answer: " * 10**5,
    "answer spaces": "answer" + " " * 10**6,
    "answers without colon": ("answer" + " *_" * 3) * 10**5,
    "hashes": "#" * 10**6,
    "think tags": "<think>" * 10**5 + "</think>" * 10**5,
    "finals": "the final answer is " * 10**5,
    "backslashes": "\\" * 10**6,
    "digits in groups": "\\boxed{" + "1,111" * 300 + "}",
    "spaces in a box": "\\boxed{" + " " * 10**6 + "7x}",
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_attack_41_regex_blow_up(pool, name):
    start = time.process_time()
    extract_answer(DEGENERATE[name])
    assert pool.verify(DEGENERATE[name], "x+1").result().outcome is not Outcome.CORRECT
    assert time.process_time() - start < 3


def test_attack_42_one_hang_among_a_thousand():
    """The rest is right, the hang is a timeout, and nobody waits for it longer than its limit."""
    hang = "\\boxed{\\int (x+y+z+w)^{900} dx}", "x+1"
    jobs = [(f"\\boxed{{{n}x + {n}}}", f"{n}(x+1)") for n in range(2, 1002)]
    jobs.insert(500, hang)
    with MathPool(2, cpu_seconds=1.0) as pool:
        verdicts = pool.verify_all(jobs)
    assert verdicts.pop(500).outcome is Outcome.TIMEOUT
    assert {verdict.outcome for verdict in verdicts} == {Outcome.CORRECT}
    assert max(verdict.seconds for verdict in verdicts) < 1.0


def test_attack_42_queue_time_is_not_billed():
    """Eight hangs before an honest answer: it waits, and is still right."""
    hangs = [("\\boxed{\\int (x+y+z+w)^{900} dx}", "x+1")] * 8
    with MathPool(1, cpu_seconds=0.2) as pool:
        verdicts = pool.verify_all([*hangs, ("\\boxed{x+x}", "2x")])
    assert [v.outcome for v in verdicts[:-1]] == [Outcome.TIMEOUT] * 8
    assert verdicts[-1].correct
    assert verdicts[-1].seconds < 0.2


def test_hostile_answers_leave_the_parent_small(pool):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pool.verify_all([(f"\\boxed{{{answer}}}", "7") for answer in TOWERS * 5])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_verify_math_uses_the_shared_pool():
    assert verify_math("\\boxed{x+x}", "2x").correct
    assert verify_math("\\boxed{10^{10^{10}}}", "2x").outcome is Outcome.LIMIT
