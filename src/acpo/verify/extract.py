"""Which part of a completion is the answer. Plain string search: linear on any text."""

import re

THINK_CLOSERS = ("</think>", "</thinking>")
THINK_OPENERS = ("<think>", "<thinking>")
BOXES = ("\\boxed", "\\fbox")

_ANSWER = re.compile(r"answer[ \t*_]{0,8}:", re.IGNORECASE)
_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n]*$", re.MULTILINE)
_PYTHON_TAGS = frozenset({"", "python", "python3", "py"})


def visible(text: str) -> str:
    """`text` without its thoughts: what follows the last closing think tag.

    An opening tag that is never closed hides everything after it, so a completion cut off while
    thinking has no visible answer.
    """
    for closer in THINK_CLOSERS:
        text = text.rpartition(closer)[2]
    for opener in THINK_OPENERS:
        text = text.partition(opener)[0]
    return text


def extract_answer(text: str) -> str | None:
    r"""The final answer of a math completion, or None when it states none.

    In this order, over the visible text: the last `\boxed{...}`, the rest of the line after the
    last `Answer:`, the rest of the line after the last `####`. The last box decides even when it
    is unclosed or empty: a completion cut off inside its final box has not answered.
    """
    text = visible(text)
    start = max(text.rfind(box) for box in BOXES)
    if start >= 0:
        return _braced(text, start) or None
    answers = list(_ANSWER.finditer(text))
    marker = answers[-1].end() if answers else text.rfind("####") + 4
    if not answers and marker == 3:
        return None
    line = text[marker:].lstrip("*_ \t").partition("\n")[0]
    return line.strip().strip("*_").strip() or None


def _braced(text: str, box: int) -> str:
    """The balanced `{...}` that follows the command at `box`, without its braces."""
    start = text.find("{", box)
    if start < 0 or text[box:start].strip() not in BOXES:
        return ""
    depth = 0
    position = start
    while position < len(text):
        char = text[position]
        if char == "\\":
            position += 1
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : position].strip()
        position += 1
    return ""


def extract_code(text: str, entry_point: str | None = None) -> str | None:
    """The program of a code completion, or None when it holds none.

    Over the visible text: the last fenced Python block that defines `entry_point`, else the last
    fenced Python block, else, where nothing is fenced, the whole text. A block whose fence is
    never closed runs to the end. Nothing is parsed here: what the code is worth is for the sandbox.
    """
    text = visible(text.removeprefix("\ufeff"))
    blocks = _python_blocks(text)
    if blocks is None:
        return text if text.strip() else None
    if entry_point is not None:
        blocks = [block for block in blocks if defines(block, entry_point)] or blocks
    return blocks[-1] if blocks and blocks[-1].strip() else None


def defines(code: str, name: str) -> bool:
    """Whether `code` has a top-level `def` or `class` called `name`, judged by its text."""
    pattern = rf"^(?:async[ \t]+)?(?:def|class)[ \t]+{re.escape(name)}\b"
    return re.search(pattern, code, re.MULTILINE) is not None


def _python_blocks(text: str) -> list[str] | None:
    """Bodies of the fenced blocks that may be Python; None when there is no fence at all."""
    blocks: list[str] = []
    opening: re.Match[str] | None = None
    fences = 0
    for fence in _FENCE.finditer(text):
        fences += 1
        if opening is None:
            opening = fence
        elif fence[2] == "" and fence[1].startswith(opening[1]):
            _keep(blocks, opening, text[opening.end() + 1 : fence.start()])
            opening = None
    if opening is not None:
        _keep(blocks, opening, text[opening.end() + 1 :])
    return blocks if fences else None


def _keep(blocks: list[str], opening: re.Match[str], body: str) -> None:
    if opening[2].lower() in _PYTHON_TAGS:
        blocks.append(body)
