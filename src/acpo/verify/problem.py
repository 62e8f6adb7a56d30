"""Code problems: what is asked, and the tests as (call, expected) pairs wherever they allow it."""

import ast
import builtins
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acpo.errors import ACPOError
from acpo.verify.asserts import has_running_assert, takes_argument
from acpo.verify.extract import defines, extract_code
from acpo.verify.rewrite import Case, Untranslatable, cases_from_test, parsed

# Tests of HumanEval Pro whose own reference answers an int where the test writes a float, or the
# other way round. Everywhere else the types have to agree.
HUMANEVAL_PRO_NUMERIC = frozenset({45, 47, 83, 130})

# What parsing a test and computing its constants may raise, down to one nested too deep for
# Python's own parser.
_BAD_DATA = (
    *(SyntaxError, ValueError, TypeError, LookupError, AttributeError),
    *(RecursionError, MemoryError, ArithmeticError),
)
_FIRST_LINE = re.compile(r"^(?:import|from|async def|def|class|@)\b", re.MULTILINE)


class ProblemError(ACPOError):
    """A code problem that cannot be read, or has no tests."""


@dataclass(frozen=True)
class StdioCase:
    """One run of a script: what it reads, and what it has to print."""

    stdin: str
    stdout: str


@dataclass(frozen=True)
class CodeProblem:
    """A problem and its tests.

    Exactly one of `cases`, `stdio` and `assert_source` is given.

    Attributes:
        prompt: Code that a completion without a `def` of the entry point continues.
        prelude: Code that runs before the solution: imports, given functions.
        entry_point: The function the tests call; None for scripts.
        cases: Calls with expected values. The sandbox sees the calls alone.
        stdio: Scripts: inputs with expected outputs.
        assert_source: A test that could not be translated to calls. It runs in `assert_mode`: in
            a sandbox of its own, with the solution's functions behind a wire.
    """

    prompt: str = ""
    prelude: str = ""
    entry_point: str | None = None
    cases: tuple[Case, ...] = ()
    stdio: tuple[StdioCase, ...] = ()
    assert_source: str | None = None

    def __post_init__(self) -> None:
        given = [bool(self.cases), bool(self.stdio), self.assert_source is not None]
        if sum(given) != 1:
            raise ProblemError(
                f"{sum(given)} kinds of tests given: a problem has cases, stdio or assert_source"
            )

    @property
    def assert_mode(self) -> bool:
        return self.assert_source is not None


def is_code(row: Mapping[str, Any]) -> bool:
    """Whether a row has the columns of a code problem, and so needs no gold answer."""
    given = {name for name, value in row.items() if value is not None}
    return any(given >= columns for columns in PROBLEM_COLUMNS)


def read_problem(row: Mapping[str, Any]) -> CodeProblem:
    """The problem of one dataset row, known by its fields.

    HumanEval Pro (`raw_problem`, `new_problem`, `test_code`), HumanEval and its kin (`prompt`,
    `test`, `entry_point`), scripts (`inputs`, `outputs`, as lists of strings or the JSON of one).
    A field that is None counts as absent, as in sets mixed of several kinds.

    Raises:
        ProblemError: The fields fit none of these, or hold no test.
    """
    row = {name: value for name, value in row.items() if value is not None}
    try:
        for columns, read in _READERS.items():
            if row.keys() >= columns:
                return read(row)
    except ProblemError:
        raise
    except _BAD_DATA as error:
        raise ProblemError(f"{type(error).__name__}: {error}") from error
    kinds = ", or ".join(" and ".join(sorted(kind)) for kind in PROBLEM_COLUMNS)
    raise ProblemError(f"fields {sorted(row)}: a code problem has {kinds}")


def _humaneval_pro(row: Mapping[str, Any]) -> CodeProblem:
    prompt = f"{row.get('raw_problem', '')}\n{row.get('new_problem', '')}"
    entry_point = _called_function(row["test_code"])
    numeric = "raw_problem" in row and row.get("id") in HUMANEVAL_PRO_NUMERIC
    return _with_tests(prompt, row["test_code"], entry_point, numeric=numeric)


def _humaneval(row: Mapping[str, Any]) -> CodeProblem:
    entry_point, test = row["entry_point"], row["test"]
    if not isinstance(entry_point, str):
        raise ProblemError(f"entry_point is {entry_point!r:.80}: it has to be a function's name")
    tree = parsed(test)
    if takes_argument(tree, "check"):
        test = f"{test}\ncheck({entry_point})\n"
    elif not has_running_assert(tree):
        raise ProblemError("the test has no check(candidate), and without one none of it runs")
    # Its tests compare by ==, and reference solutions do answer 3.0 where they write 3.
    return _with_tests(row.get("prompt", ""), test, entry_point, numeric=True)


def _scripts(row: Mapping[str, Any]) -> CodeProblem:
    inputs, outputs = (_texts(name, row[name]) for name in ("inputs", "outputs"))
    if not inputs or len(inputs) != len(outputs):
        counts = f"{len(inputs)} inputs, {len(outputs)} outputs"
        raise ProblemError(f"{counts}: scripts need as many outputs as inputs, and at least one")
    return CodeProblem(stdio=tuple(map(StdioCase, inputs, outputs)))


_READERS = {
    frozenset({"test_code"}): _humaneval_pro,
    frozenset({"test", "entry_point"}): _humaneval,
    frozenset({"inputs", "outputs"}): _scripts,
}
PROBLEM_COLUMNS = tuple(_READERS)
"""The fields by which a row is known as a code problem; one of these sets."""


def _texts(name: str, value: Any) -> list[str]:
    """A column of a script problem as a list of texts."""
    if isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, list | tuple):
        raise ProblemError(f"{name} is a {type(value).__name__}: it has to be a list of strings")
    for index, item in enumerate(value):
        if not isinstance(item, str | int | float) or isinstance(item, bool):
            kind = type(item).__name__
            raise ProblemError(f"{name}[{index}] is a {kind}: it has to be a string")
    return [str(item) for item in value]


def _with_tests(prompt: str, test: str, entry_point: str, *, numeric: bool) -> CodeProblem:
    compile(test, "<test>", "exec")
    if not has_running_assert(parsed(test)):
        raise ProblemError(
            "the test has no assert that can run: it needs one at its top level, or in a function "
            "that it calls"
        )
    try:
        cases = cases_from_test(test, entry_point, numeric=numeric)
    except Untranslatable:
        return CodeProblem(prompt, _prelude(prompt), entry_point, assert_source=test)
    return CodeProblem(prompt, _prelude(prompt), entry_point, cases)


def _prelude(prompt: str) -> str:
    """The prompt where it is a program but for the body of its last function, else its imports."""
    if program := _program(prompt):
        return program
    return "\n".join(line for line in prompt.splitlines() if line.startswith(("import ", "from ")))


def _program(source: str) -> str:
    """`source`, with a body for its last function where that has none; "" where it is no code."""
    for candidate in (source, f"{source.rstrip()}\n    pass\n"):
        try:
            compile(candidate, "<prompt>", "exec", dont_inherit=True)
        except _BAD_DATA:
            continue
        return candidate
    return ""


def code_in_prompt(prompt: str, entry_point: str) -> str:
    """The code that a prompt asks to complete, without what is said around it.

    That is the prompt itself, its fenced block, or its end from the first line of code on,
    whichever first is a program with `entry_point` in it; else the prompt as it is.
    """
    candidates = [prompt, extract_code(prompt, entry_point) or ""]
    first = _FIRST_LINE.search(prompt)
    candidates += [prompt[first.start() :]] if first else []
    for code in candidates:
        if defines(code, entry_point) and _program(code):
            return code
    return prompt


def _called_function(test: str) -> str:
    """The function a test is about: the first one it calls that neither it nor Python defines."""
    nodes = list(ast.walk(parsed(test)))
    own: set[str] = set().union(*map(_bound, nodes))
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
            if name not in own and not hasattr(builtins, name):
                return name
    raise ProblemError("the test calls no function but its own")


def _bound(node: ast.AST) -> set[str]:
    """The names that a part of a test gives a meaning to."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
            return {name}
        case ast.Name(id=name, ctx=ast.Store()):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {alias.asname or alias.name for alias in names}
    return set()
