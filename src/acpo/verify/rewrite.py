"""Asserts to (call, expected): the call goes into the sandbox, the expected value never does."""

import ast
import math
import operator
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from acpo.verify.compare import Rule


class Untranslatable(Exception):
    """The test does more than compare calls with constants."""


@dataclass(frozen=True)
class Case:
    """One call and what it has to give."""

    expression: str
    expected: Any = None
    rule: Rule = "equal"
    rel_tol: float = 1e-9
    abs_tol: float = 0.0


_ARITHMETIC: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
MOST_ITEMS = 1_000_000
"""Of a constant in a test, which is made in the caller's process."""
_MAKERS: dict[str, Callable[..., Any]] = {
    kind.__name__: kind for kind in (set, frozenset, list, tuple, dict, float, int, complex, bytes)
}
# Builtins that may surround the call under test; what they compute is sent back and compared.
_WRAPPERS = frozenset({*_MAKERS, "sorted", "len", "round"})
_CONSTANTS = {"math.pi": math.pi, "math.e": math.e, "math.inf": math.inf, "math.nan": math.nan}


# CPython 3.11 and 3.12 count the depth of `ast.parse` in one place for all threads, and raise
# SystemError where a garbage collection lets a second parse in.
_PARSING = threading.Lock()


def parsed(source: str) -> ast.Module:
    """The syntax tree of `source`, from whichever thread."""
    with _PARSING:
        return ast.parse(source)


def cases_from_test(test: str, entry_point: str, *, numeric: bool = False) -> tuple[Case, ...]:
    """The asserts of `test` as cases: top-level ones, or those of a `check(candidate)`.

    Raises:
        Untranslatable: Some statement is not an assert that compares a call with a constant.
    """
    cases: list[Case] = []
    for statement in _asserts(parsed(test).body, entry_point):
        condition = statement.test
        if isinstance(condition, ast.Constant) and condition.value is True:
            continue
        cases.append(_case(condition, entry_point, numeric))
    if not cases:
        raise Untranslatable("no assert")
    return tuple(cases)


def _asserts(body: list[ast.stmt], entry_point: str) -> list[ast.Assert]:
    """The asserts of a test module, those of its `check(candidate)` included."""
    found: list[ast.Assert] = []
    for statement in body:
        if isinstance(statement, ast.Assert):
            found.append(statement)
        elif isinstance(statement, ast.FunctionDef) and statement.name == "check":
            inner = statement.body
            if names := statement.args.args:
                renamed = _Rename(names[0].arg, entry_point)
                inner = [renamed.visit(one) for one in inner]
            found += _asserts(inner, entry_point)
        elif not _is_idle(statement):
            raise Untranslatable(ast.unparse(statement)[:80])
    return found


def _is_idle(statement: ast.stmt) -> bool:
    """Statements that test nothing: docstrings, `METADATA = {...}`, `import math`, `check(f)`."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names] == ["math"]
    if isinstance(statement, ast.Assign):
        return ast.unparse(statement.targets[0]) == "METADATA"
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func) == "check"
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


class _Rename(ast.NodeTransformer):
    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._new, node.ctx) if node.id == self._old else node


def _case(condition: ast.expr, entry_point: str, numeric: bool) -> Case:
    equal: Rule = "numeric" if numeric else "equal"
    match condition:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]):
            if _calls(right, entry_point) and not _calls(left, entry_point):
                left, right = right, left
            return Case(_call(left, entry_point), _constant(right), equal)
        case ast.Call(func=func, args=[value, wanted], keywords=keywords) if ast.unparse(func) in (
            "math.isclose",
            "isclose",
        ):
            named = {word.arg or "": _constant(word.value) for word in keywords}
            return _close(value, _constant(wanted), entry_point, **named)
        case ast.Compare(
            left=ast.Call(func=func, args=[ast.BinOp(left=value, op=ast.Sub(), right=wanted)]),
            ops=[ast.Lt() | ast.LtE()],
            comparators=[tolerance],
        ) if ast.unparse(func) in ("abs", "math.fabs"):
            if _calls(wanted, entry_point):
                value, wanted = wanted, value
            bound = _constant(tolerance)
            return _close(value, _constant(wanted), entry_point, rel_tol=0.0, abs_tol=bound)
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=ast.Name(id=name)) as call) if (
            name == entry_point
        ):
            return Case(_call(call, entry_point), rule="falsy")
        case ast.Call(func=ast.Name(id=name)) if name == entry_point:
            return Case(_call(condition, entry_point), rule="truthy")
    raise Untranslatable(ast.unparse(condition)[:80])


def _close(
    value: ast.expr, wanted: Any, entry_point: str, rel_tol: float = 1e-9, abs_tol: float = 0.0
) -> Case:
    return Case(_call(value, entry_point), wanted, "close", rel_tol, abs_tol)


def _calls(node: ast.expr, entry_point: str) -> bool:
    return any(isinstance(inner, ast.Name) and inner.id == entry_point for inner in ast.walk(node))


def _call(node: ast.expr, entry_point: str) -> str:
    """`node` as the expression the sandbox evaluates.

    Arithmetic on calls stays with the call (`f(1) + f(2) == 6` sends the sum); any other name than
    the function under test would have to be looked up, so it is not sent.
    """
    names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    if not _is_asked_alone(node, entry_point) or names - {entry_point} - _WRAPPERS:
        raise Untranslatable(ast.unparse(node)[:80])
    return ast.unparse(node)


def _is_asked_alone(node: ast.expr, entry_point: str) -> bool:
    """Whether what calls return meets nothing in `node` that tells the value wanted of it.

    Objects of the solution have operators and methods of their own: one that `f(1) - 3`,
    `f(1) == 3` or `f(1).count(3)` show the 3 can answer as if it were equal.
    """
    match node:
        case ast.Call(func=ast.Name(id=name)) if name == entry_point:
            return True
        case ast.Call(func=ast.Name(id=name), args=[value, *others], keywords=keywords):
            settings = [*others, *(word.value for word in keywords)]
            return (
                name in _WRAPPERS
                and _is_asked_alone(value, entry_point)
                and not any(_calls(setting, entry_point) for setting in settings)
            )
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _is_asked_alone(left, entry_point) and _is_asked_alone(right, entry_point)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _ARITHMETIC:
            return _is_asked_alone(operand, entry_point)
        case ast.Subscript(value=value, slice=part):
            return _is_asked_alone(value, entry_point) and not _calls(part, entry_point)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return bool(elements) and all(_is_asked_alone(item, entry_point) for item in elements)
    return False


def _arithmetic(op: ast.operator, left: Any, right: Any) -> Any:
    for items, times in ((left, right), (right, left)):
        if hasattr(items, "__len__") and type(times) is int and len(items) * times > MOST_ITEMS:
            raise Untranslatable(f"more than {MOST_ITEMS:,} items")
    return _ARITHMETIC[type(op)](left, right)


def _constant(node: ast.expr) -> Any:
    """The value of an expression made of constants alone."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=elements):
            return [_constant(element) for element in elements]
        case ast.Tuple(elts=elements):
            return tuple(_constant(element) for element in elements)
        case ast.Set(elts=elements):
            return {_constant(element) for element in elements}
        case ast.Dict(keys=keys, values=values) if None not in keys:
            pairs = zip(keys, values, strict=True)
            return {_constant(key): _constant(value) for key, value in pairs if key is not None}
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](_constant(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _arithmetic(op, _constant(left), _constant(right))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _MAKERS:
            given = [_constant(arg) for arg in args]
            if name == "bytes" and any(type(one) is int and one > MOST_ITEMS for one in given):
                raise Untranslatable(ast.unparse(node)[:80])
            return _MAKERS[name](*given)
        case ast.Attribute() if ast.unparse(node) in _CONSTANTS:
            return _CONSTANTS[ast.unparse(node)]
    raise Untranslatable(ast.unparse(node)[:80])
