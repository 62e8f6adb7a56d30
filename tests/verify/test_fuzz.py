"""Ten thousand strings of garbage: no crash, no hang, no `correct`, bounded memory."""

import os
import random
import time
from collections import Counter

import pytest

from acpo.verify import MathPool, Outcome
from acpo.verify.proctree import tree_memory

COUNT = 10_000
GOLDS = ["918273645", "x^{17} + 918273", "\\frac{918273}{645}", "(918, 273)", "\\{918, 273\\}"]
COMMANDS = (
    "\\frac \\sqrt \\boxed { } ( ) [ ] ^ _ & \\\\ \\left \\right \\text \\begin{pmatrix} \\pm "
    "\\end{pmatrix} \\sum_{k=1}^{n} \\int \\lim \\infty \\pi \\cdot \\times = < > \\le \\ne , ; : "
    "! % \\% $ 0 1 2 3 12 3.5 1,000 x y z e i \\cup \\in \\mathbb{R} \\emptyset \\binom \\sin "
    "\\log \\circ ' \" | ~ # @ ? ` \\operatorname \\overline \\vec \\mathrm + - / *"
)
TOKENS = [*COMMANDS.split(), " ", "\n", "\\", "\t"]
ODD = (
    "\x00\x01\x7f\u200b\u202e\ufeff\u0663\u00bd\u221a\u03c0\u2260\u2212\uff15\U0001f600\ud800\udfff"
)


def latex(rng: random.Random) -> str:
    return "".join(rng.choice(TOKENS) for _ in range(rng.randint(1, 30)))


def truncated(rng: random.Random) -> str:
    text = f"so \\boxed{{{latex(rng)}}} and \\boxed{{{latex(rng)}}}"
    return text[: rng.randint(0, len(text))]


def odd(rng: random.Random) -> str:
    return "".join(
        rng.choice(ODD) if rng.random() < 0.4 else chr(rng.randint(32, 0x2FFF)) for _ in range(40)
    )


def nested(rng: random.Random) -> str:
    depth = rng.choice([10, 30, 100, 1000, 20_000])
    left, right = rng.choice([("{", "}"), ("(", ")"), ("\\frac{", "}{2}"), ("\\sqrt{", "}")])
    return left * depth + rng.choice(TOKENS) + right * rng.choice([depth, depth - 1, 0])


def garbage(rng: random.Random) -> str:
    make = rng.choice([latex, latex, latex, truncated, odd, nested])
    form = rng.choice(["\\boxed{%s}", "\\boxed{%s}", "Answer: %s", "#### %s", "%s", "</think>%s"])
    return form.replace("%s", make(rng))


@pytest.fixture(scope="module")
def hasty():
    with MathPool(2, cpu_seconds=0.5) as made:
        yield made


def test_ten_thousand_strings():
    rng = random.Random(20)
    jobs = [(garbage(rng), rng.choice(GOLDS)) for _ in range(COUNT)]
    start = time.monotonic()
    # What other tests left in this process is not the pool's.
    before = largest = tree_memory(os.getpid())
    with MathPool(2, cpu_seconds=0.5) as pool:
        futures = []
        for index, job in enumerate(jobs):
            futures.append(pool.verify(*job))
            if index % 200 == 0:
                largest = max(largest, tree_memory(os.getpid()))
        verdicts = [future.result(timeout=120) for future in futures]
    counts = Counter(verdict.outcome for verdict in verdicts)
    print(
        f"\nfuzz: {dict(counts)} in {time.monotonic() - start:.0f} s, "
        f"{(largest - before) >> 20} MiB more"
    )
    assert [job for job, v in zip(jobs, verdicts, strict=True) if v.correct] == []
    assert counts[Outcome.INFRA_ERROR] == counts[Outcome.UNPARSEABLE_GOLD] == 0
    assert counts[Outcome.TIMEOUT] < COUNT / 100
    assert largest - before < 1000 << 20


@pytest.mark.parametrize("seed", range(3))
def test_garbage_as_gold_rewards_nothing(hasty, seed):
    """A broken gold answer earns nobody a reward, and no punishment either."""
    rng = random.Random(seed)
    verdicts = hasty.verify_all(("\\boxed{918273645}", latex(rng)) for _ in range(300))
    assert not any(verdict.correct for verdict in verdicts)
    assert {v.outcome for v in verdicts} <= {
        Outcome.INCORRECT,
        Outcome.UNPARSEABLE_GOLD,
        Outcome.TIMEOUT,
        Outcome.LIMIT,
    }
