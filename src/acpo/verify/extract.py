"""Which part of a completion is the answer. Plain string search: linear on any text."""

import re
from collections.abc import Iterator

THINK_CLOSERS = ("</think>", "</thinking>")
THINK_OPENERS = ("<think>", "<thinking>")
BOXES = ("\\boxed", "\\fbox", "\\framebox")

_ANSWER = re.compile(
    r"answer[ \t*_]{0,8}:[*_]{0,3}"
    r"|^[ \t]{0,3}(?:#{1,6}[ \t]+(?:\*\*)?|\*\*)(?:final[ \t]+)?answer\**[ \t\r]{0,8}$",
    re.IGNORECASE | re.MULTILINE,
)
_SENTENCE = re.compile(
    r"\banswer is(?:[ \t*_]{0,8}:?[ \t*_]{0,8}\n\s*"
    r"|(?: ?:)?(?: (?:therefore|thus|then|simply|equal to))? +)",
    re.IGNORECASE,
)
_DISPLAYS = {"$$": "$$", "\\[": "\\]"}
_CLOSINGS = {**_DISPLAYS, "\\(": "\\)", "**": "**"}
# A full stop that ends a sentence, not one inside a number or behind an abbreviation.
_FULL_STOP = re.compile(r"\.(?=\s|$|\*\*)")
_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n]*$", re.MULTILINE)
_ITEM = re.compile(r"^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]", re.MULTILINE)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
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

    In this order, over the visible text: the last `\boxed{...}`; what follows the last `Answer:`,
    or the last heading that says so; what follows the last `####`; the last sentence that says
    what "the answer is". The last box decides even when it is unclosed or empty: a completion cut
    off inside its final box has not answered, and neither has a sentence without its full stop.
    """
    text = visible(text)
    start = max(text.rfind(box) for box in BOXES)
    if start >= 0:
        return _braced(text, start) or None
    markers = [match.end() for match in _ANSWER.finditer(text)]
    idle = "*_ \t\r"
    if not markers and (hashes := text.rfind("####")) >= 0:
        markers, idle = [hashes + 4], ""
    if not markers:
        return _stated(text)
    rest = text[markers[-1] :].lstrip(idle)
    if rest.startswith("\n"):
        rest = rest.lstrip(idle + "\n")
    line = _line(rest.lstrip("*_ \t"))[0]
    return _stated(line) or line.strip("*_").strip() or None


def _line(text: str) -> tuple[str, bool]:
    """(the first line of `text`, or the display that it opens; whether it has an end)"""
    line, newline, rest = text.partition("\n")
    line = line.strip()
    if line not in _DISPLAYS:
        return line, bool(newline)
    body, closing, _ = rest.partition(_DISPLAYS[line])
    whole = f"{line}{body.strip()}{closing}" if closing and body.strip() else ""
    return whole.replace("\n", " "), bool(closing)


def _stated(text: str) -> str | None:
    """What the last complete sentence of the form "the answer is ..." says."""
    found = [match.end() for match in _SENTENCE.finditer(text)]
    if not found:
        return None
    line, ended = _line(text[found[-1] :])
    closing = _CLOSINGS.get(line[:2], "$" if line[:1] == "$" else "")
    if closing and (end := line.find(closing, 2)) > 0:
        after = line[end + len(closing) :].lstrip("*")
        if not after or after.startswith((".", " .")):
            return line[: end + len(closing)]
    stop = _FULL_STOP.search(line)
    if stop is None and not ended:
        return None
    return line[: stop.start() if stop else None].strip("* ") or None


def extract_gold(gold: str) -> str:
    """The answer in a gold field that holds a whole solution, else the field as it is."""
    if any(mark in gold for mark in (*BOXES, "####")) or _SENTENCE.search(gold):
        return extract_answer(gold) or ""
    return gold


def _braced(text: str, box: int) -> str:
    """The balanced `{...}` that follows the command at `box`, without its braces."""
    start = text.find("{", box)
    if start < 0 or text[box:start].strip() not in BOXES:
        return ""
    closing = (position for position, depth in brace_depths(text, start) if depth == 0)
    end = next(closing, None)
    return "" if end is None else text[start + 1 : end].strip()


def brace_depths(text: str, start: int = 0) -> Iterator[tuple[int, int]]:
    """Where the braces of `text` are, escaped ones left out, and how many are open after each."""
    depth = 0
    for match in _BRACE.finditer(text, start):
        if len(match[0]) == 1:
            depth += 1 if match[0] == "{" else -1
            yield match.start(), depth


def extract_code(text: str, entry_point: str | None = None) -> str | None:
    """The program of a code completion, or None when it holds none.

    Over the visible text: the last fenced block that defines `entry_point`, else the last one
    tagged as Python, else the last without a tag, else, where nothing is fenced, the whole text. A
    block whose fence is never closed runs to the end. Nothing is parsed here: what the code is
    worth is for the sandbox.
    """
    text = visible(text.removeprefix("\ufeff"))
    blocks = _python_blocks(text)
    if blocks is None:
        return text if text.strip() else None
    # Beside a program, a block without a tag is what it prints.
    found = [body for tag, body in blocks if tag] or [body for _, body in blocks]
    if entry_point is not None:
        found = [body for _, body in blocks if defines(body, entry_point)] or found
    return found[-1] if found and found[-1].strip() else None


def defines(code: str, name: str) -> bool:
    """Whether `code` has a top-level `def` or `class` called `name`, judged by its text."""
    pattern = rf"^(?:async[ \t]+)?(?:def|class)[ \t]+{re.escape(name)}\b"
    return re.search(pattern, code, re.MULTILINE) is not None


def _python_blocks(text: str) -> list[tuple[str, str]] | None:
    """Tags and bodies of the fenced blocks that may be Python; None when there is no fence."""
    blocks: list[tuple[str, str]] = []
    opening: re.Match[str] | None = None
    item = _ITEM.search(text)
    for fence in _FENCE.finditer(text):
        indent = len(fence[1])
        if opening is None:
            # Deeper ones stand in items of a list; elsewhere in a docstring.
            if indent <= 3 or (item and item.start() < fence.start()):
                opening = fence
        elif fence[3] == "" and fence[2].startswith(opening[2]) and indent <= len(opening[1]) + 3:
            blocks.append(_block(opening, fence.start()))
            opening = None
    if opening is not None:
        blocks.append(_block(opening, len(text)))
    return [block for block in blocks if block[0].lower() in _PYTHON_TAGS] if blocks else None


def _block(opening: re.Match[str], end: int) -> tuple[str, str]:
    """The tag of a fenced block, and its body without the indentation of the fence."""
    body = opening.string[opening.end() + 1 : end]
    return opening[3], re.sub(rf"^[ \t]{{0,{len(opening[1])}}}", "", body, flags=re.MULTILINE)
