"""Inequalities that all have to hold, and such of which one does."""

import pytest


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("(1,5)", "x>1 \\text{ and } x<5", True),
        ("1<x<5", "x>1 and x<5", True),
        ("x>1 \\text{ and } x\\le 5", "(1,5]", True),
        ("x<5 \\text{ and } x>1", "x>1 \\text{ and } x<5", True),
        ("x>1, x<5", "x>1 \\text{ and } x<5", True),
        ("x>1, x<5", "(1,5)", True),
        ("x \\ge 1 \\text{ and } x \\le 1", "1", True),
        ("x<1 \\text{ and } x>3", "\\emptyset", True),
        ("x>1 and x>3", "(3,\\infty)", True),
        ("0<x<4 \\text{ and } x \\ne 2", "(0,2)\\cup(2,4)", True),
        ("x\\ne 1 \\text{ and } x\\ne 2", "(-\\infty,1)\\cup(1,2)\\cup(2,\\infty)", True),
        ("x\\ne 1, x\\ne 2", "x\\ne 1 \\text{ and } x\\ne 2", True),
        ("x>\\sqrt2 \\text{ and } x<\\sqrt3", "x<\\sqrt3 \\text{ and } x>\\sqrt2", True),
        ("x>1, y<2", "x>1 \\text{ and } y<2", True),
        ("x<1 \\text{ or } x>3", "(-\\infty,1)\\cup(3,\\infty)", True),
        ("x<1, x>3", "(-\\infty,1)\\cup(3,\\infty)", True),
        ("x>1 \\text{ and } x<2", "(1,\\infty)\\cup(-\\infty,2)", False),
        ("x<1 \\text{ and } x>3", "(-\\infty,1)\\cup(3,\\infty)", False),
        ("x<1 \\text{ and } x>3", "x<1 \\text{ or } x>3", False),
        ("x>1 \\text{ or } x<5", "x>1 \\text{ and } x<5", False),
        ("[1,5)", "x>1 \\text{ and } x<5", False),
        ("x<\\sqrt2 \\text{ and } x>\\sqrt3", "x<\\sqrt2 \\text{ or } x>\\sqrt3", False),
        ("x>1 \\text{ or } y<2", "x>1 \\text{ and } y<2", False),
        ("x<1 \\text{ or } x>3 \\text{ and } x<5", "x<1 \\text{ and } x>3 \\text{ or } x<5", False),
        ("x\\ne 1 \\text{ or } x\\ne 2", "x\\ne 1 \\text{ and } x\\ne 2", False),
    ],
)
def test_and_is_not_or(pool, answer, gold, right):
    verdict = pool.verify(f"So \\boxed{{{answer}}}.", gold).result()
    assert verdict.correct is right
