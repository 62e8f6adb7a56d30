"""Real answers: right against themselves, wrong against each other."""

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest

from acpo.verify import Outcome
from acpo.verify.code import CodePool
from acpo.verify.extract import extract_code
from acpo.verify.math import MathJob
from acpo.verify.normalise import normalise
from acpo.verify.problem import HUMANEVAL_PRO_NUMERIC, read_problem
from verify.naive import exit_codes
from verify.sandboxed import SHORT, backend

PATIENT = replace(SHORT, cpu_seconds=20, wall_seconds=60.0)

SIZES = {
    "aime24": 30,
    "aime25": 30,
    "math500": 500,
    "hmmt25": 30,
    "beyondaime": 100,
    "gsm8k_test": 1319,
}


def rows(data: Path, name: str) -> list[dict]:
    with (data / f"{name}.jsonl").open() as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("name", SIZES)
def test_gold_is_right_against_itself(shared_data, pool, name):
    golds = [row["answer"] for row in rows(shared_data, name)]
    assert len(golds) == SIZES[name]
    for form in ("So $\\boxed{%s}$.", "<think>hm</think>\nAnswer: %s", "#### %s"):
        verdicts = pool.verify_all((form % gold, gold) for gold in golds)
        assert [v for v in verdicts if not v.correct] == []


@pytest.mark.parametrize("name", ["math500", "hmmt25"])
def test_gold_is_right_against_itself_through_sympy(shared_data, pool, name):
    golds = [normalise(row["answer"]) for row in rows(shared_data, name)]
    futures = [pool.submit(MathJob(gold, gold)) for gold in golds]
    assert [future.result() for future in futures if not future.result().correct] == []


@pytest.mark.parametrize("name", ["aime24", "math500", "hmmt25", "beyondaime"])
def test_gold_is_wrong_against_other_problems(shared_data, pool, name):
    golds = [row["answer"] for row in rows(shared_data, name)]
    shifted = golds[7:] + golds[:7]
    verdicts = pool.verify_all((f"\\boxed{{{a}}}", b) for a, b in zip(golds, shifted, strict=True))
    assert {v.outcome for v in verdicts} <= {Outcome.CORRECT, Outcome.INCORRECT}
    equal = [(a, b) for a, b, v in zip(golds, shifted, verdicts, strict=True) if v.correct]
    assert [pair for pair in equal if pair[0].lstrip("0") != pair[1].lstrip("0")] == []


def reference(row: dict) -> str:
    raw = row["raw_problem"] + row["raw_solution"]
    return f"{raw}\n{row['new_problem']}{row['new_solution']}\n"


@pytest.fixture(scope="module")
def strictly_wrong(shared_data) -> set[int]:
    """The problems of HumanEval Pro whose references fail where ints are no floats."""
    problems = rows(shared_data, "humaneval_pro")
    strict = [{**row, "id": None} for row in problems]
    with CodePool(2, backend(PATIENT)) as code_pool:
        verdicts = code_pool.verify_all((reference(row), row) for row in strict)
    return {row["id"] for row, v in zip(problems, verdicts, strict=True) if not v.correct}


@pytest.mark.sandbox
def test_only_the_listed_problems_mix_ints_and_floats(strictly_wrong):
    assert strictly_wrong == HUMANEVAL_PRO_NUMERIC


@pytest.mark.sandbox
def test_humaneval_pro_references_are_correct(shared_data, strictly_wrong):
    """The others passed under the same tests, so that only the listed ones run again."""
    problems = rows(shared_data, "humaneval_pro")
    assert len(problems) == 164
    assert not any(read_problem(row).assert_mode for row in problems)
    fenced = {row["id"]: f"```python\n{reference(row)}\n```" for row in problems}
    for row in problems:
        assert extract_code(fenced[row["id"]]).rstrip("\n") == reference(row).rstrip("\n")
    for row in problems:
        same = read_problem(row) == read_problem({**row, "id": None})
        assert same == (row["id"] not in strictly_wrong)
    again = [row for row in problems if row["id"] in strictly_wrong]
    with CodePool(2, backend(PATIENT)) as code_pool:
        verdicts = code_pool.verify_all((fenced[row["id"]], row) for row in again)
    assert [v for v in verdicts if not v.correct] == []


class WrongConstant(ast.NodeTransformer):
    def visit_Constant(self, node):
        if type(node.value) in (int, float):
            return ast.Constant(node.value + 1)
        return node


class MissingReturn(ast.NodeTransformer):
    def visit_Return(self, node):
        return ast.Expr(node.value) if node.value else node


class OffByOne(ast.NodeTransformer):
    def visit_Return(self, node):
        return (
            ast.Return(ast.Call(ast.Name("_off", ast.Load()), [node.value], []))
            if node.value
            else node
        )


OFF = """
def _off(value):
    if isinstance(value, bool): return not value
    if isinstance(value, (int, float)): return value + 1
    if isinstance(value, str): return value + "x"
    if isinstance(value, (list, tuple)): return value[1:] if value else type(value)((1,))
    if isinstance(value, dict): return {**value, "off": 1}
    if isinstance(value, set): return value | {"off"}
    return 1
"""


def mutants(row: dict) -> list[str]:
    """The reference with its last function wrong, in three ways."""
    made = []
    for change in (WrongConstant(), MissingReturn(), OffByOne()):
        tree = ast.parse(reference(row))
        entry = read_problem(row).entry_point
        tree.body = [
            change.visit(node) if getattr(node, "name", "") == entry else node for node in tree.body
        ]
        made.append(OFF + ast.unparse(ast.fix_missing_locations(tree)))
    return made


@pytest.mark.sandbox
def test_mutated_references_are_not_correct(shared_data):
    """Whatever fails the original asserts in plain Python must not be correct here.

    A mutant that plain Python cannot judge in time is left out.
    """
    problems = rows(shared_data, "humaneval_pro")
    jobs = [(mutant, row) for row in problems for mutant in mutants(row)]
    codes = exit_codes([f"{code}\n{row['test_code']}\n" for code, row in jobs], cpu_seconds=2)
    broken = [job for job, code in zip(jobs, codes, strict=True) if code > 0]
    assert {row["id"] for _, row in broken} == {row["id"] for row in problems}
    assert len(broken) > 2 * len(problems)
    with CodePool(2, backend(PATIENT)) as code_pool:
        verdicts = code_pool.verify_all((f"```python\n{code}\n```", row) for code, row in broken)
    assert [v for v in verdicts if v.correct] == []
    assert [v for v in verdicts if v.reward() is None] == []
