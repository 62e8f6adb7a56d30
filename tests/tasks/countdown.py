"""A benchmark with its own grader, as a user would write it."""

import ast
import operator
import random

from acpo.tasks import Task

SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def problems(seed):
    rng = random.Random(seed)
    while True:
        a, b, c = (rng.randint(1, 9) for _ in range(3))
        yield {"numbers": [a, b, c], "target": a * b + c, "answer": f"{a}*{b}+{c}"}


def value(node):
    if isinstance(node, ast.Constant):
        return node.value
    return SIGNS[type(node.op)](value(node.left), value(node.right))


def grade(completion, row):
    try:
        tree = ast.parse(completion.strip(), mode="eval").body
        used = sorted(node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        return used == sorted(row["numbers"]) and value(tree) == row["target"]
    except (SyntaxError, KeyError, AttributeError, TypeError, ValueError):
        return False


countdown = Task(problems=problems, template="{target} of {numbers}: ", grader=grade, k=2)
