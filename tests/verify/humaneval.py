"""Code problems as HumanEval writes them, in the three shapes in which models answer them."""

import ast
import json
import re
import textwrap
from pathlib import Path

from acpo.verify import read_problem

# name and arguments, docstring, body, asserts; imports before the first, helpers where needed.
_OWN = [
    ("add_all(xs: List[int]) -> int", "    return sum(xs)\n", ["([1, 2]) == 3", "([]) == 0"]),
    ("halve(n: int)", "    return n / 2\n", ["(4) == 2", "(5) == 2.5"]),
    ("triangle(n: int)", "    return n * (n + 1) / 2\n", ["(4) == 10", "(1) == 1"]),
    ("whole(x: float) -> float", "    return int(x)\n", ["(2.5) == 2.0", "(-1.5) == -1.0"]),
    ("root(x: float) -> float", "    return math.sqrt(x)\n", ["(4.0) == 2.0"]),
    ("words(s: str) -> List[str]", "\n    return s.split()\n", ["('a b') == ['a', 'b']"]),
    ("first(xs) -> Optional[int]", "    return xs[0] if xs else None\n", ["([]) is None"]),
    ("is_even(n: int) -> bool", "    return n % 2 == 0\n", ["(2) == True", "(3) == False"]),
    ("swap(a, b) -> Tuple", "    return b, a\n", ["(1, 2) == (2, 1)"]),
    ("count(s: str) -> dict", "    return {c: s.count(c) for c in s}\n", ["('aa') == {'a': 2}"]),
    ("unique(xs) -> set", "    s = set()\n    for x in xs:\n        s.add(x)\n    return s\n",
     ["([1, 1]) == {1}"]),
    ("near(x: float) -> float", "    return x + 1e-9\n", ["(1.0) > 0"]),
]  # fmt: skip
_HEADER = "import math\nfrom typing import List, Optional, Tuple\n\n\n"


def own_problems() -> list[dict]:
    rows = []
    for number, (signature, body, asserts) in enumerate(_OWN):
        name = signature.partition("(")[0]
        prompt = f'{_HEADER}def {signature}:\n    """ Answer as the tests say. """\n'
        checks = "".join(f"    assert candidate{check}\n" for check in asserts)
        test = f"METADATA = {{}}\n\n\ndef check(candidate):\n{checks}"
        row = {"task_id": f"Own/{number}", "prompt": prompt, "entry_point": name, "test": test}
        rows.append({**row, "canonical_solution": body})
    return rows


def shared_problems(data: Path) -> list[dict]:
    """HumanEval Pro as HumanEval: the first function is given, the second is asked for."""
    rows = []
    for line in (data / "humaneval_pro.jsonl").read_text().splitlines():
        row = json.loads(line)
        name = read_problem(row).entry_point
        test = f"def check(candidate):\n{textwrap.indent(row['test_code'], '    ')}\n"
        given = f"{row['raw_problem']}{row['raw_solution']}\n"
        whole = f"{given}{row['new_problem']}{row['new_solution']}\n"
        asked = [node for node in ast.parse(whole).body if getattr(node, "name", "") == name][-1]
        lines = whole.splitlines(keepends=True)
        first = asked.body[0].lineno - 1
        prompt, body = "".join(lines[:first]), "".join(lines[first:])
        rows.append({"task_id": f"Pro/{row['id']}", "prompt": prompt, "entry_point": name,
                     "test": test, "canonical_solution": body})  # fmt: skip
    return rows


def shapes(row: dict) -> dict[str, str]:
    """The reference as the body that continues the prompt, as the function, as a whole program."""
    whole = f"{row['prompt'].rstrip()}\n{row['canonical_solution']}"
    start = re.search(rf"^def {row['entry_point']}\b", whole, re.MULTILINE).start()
    return {
        "body": row["canonical_solution"],
        "function": f"Here it is:\n```python\n{whole[start:]}\n```",
        "program": f"```python\n{whole}\n```",
    }
