"""Which asserts of a test can run: those of functions that nothing calls accept every solution."""

import ast
from collections import defaultdict

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
# With these a test finds its functions without naming them.
_LOOKUPS = frozenset({"globals", "locals", "vars", "dir", "eval", "exec"})


def has_running_assert(test: ast.Module) -> bool:
    """Whether some assert of `test` can run and fail.

    Asserts run at the top level and in what is named there, or in turn in what runs. `assert True`
    and `assert (x == y, "why")`, a pair, do not fail; `raise`, `assertEqual` and its kin do.
    """
    waiting: list[ast.AST] = [test]
    asleep: defaultdict[str, list[ast.AST]] = defaultdict(list)
    named: set[str] = set()
    while waiting:
        node = waiting.pop()
        if _can_fail(node):
            return True
        if isinstance(node, _Definition):
            asleep[node.name] += _insides(node)
            waiting += node.decorator_list
        else:
            waiting += ast.iter_child_nodes(node)
        named |= _names(node)
        for name in named & asleep.keys():
            waiting += asleep.pop(name)
    return bool(named & _LOOKUPS) and any(_can_fail(node) for node in ast.walk(test))


def takes_argument(test: ast.Module, name: str) -> bool:
    """Whether `test` has a function `name` at its top level that takes an argument."""
    for node in test.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            given = node.args
            return bool(given.posonlyargs or given.args or given.vararg)
    return False


def _insides(definition: _Definition) -> list[ast.AST]:
    """What runs when a function is called, or what a class and all its methods do."""
    inner: list[ast.AST] = list(definition.body)
    if isinstance(definition, ast.ClassDef):
        for method in definition.body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                inner += method.body
    return inner


def _names(node: ast.AST) -> set[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
            return {name}
    return set()


def _can_fail(node: ast.AST) -> bool:
    match node:
        case ast.Assert(test=ast.Constant(value=value)):
            return not value
        case ast.Assert(test=ast.Tuple(elts=parts)) if parts:
            return all(isinstance(part, ast.Starred) for part in parts)
        case ast.Assert() | ast.Raise():
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name.startswith("assert")
    return False
