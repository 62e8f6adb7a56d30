"""Where the answer is, and what exact comparison makes of it."""

import pytest

from acpo.verify import exact
from acpo.verify.extract import extract_answer, extract_code, visible
from acpo.verify.math import decide_without_algebra
from acpo.verify.normalise import normalise, oversized


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{7}", "7"),
        ("\\boxed{1} then \\boxed{2}", "2"),
        ("\\boxed {2}", "2"),
        ("\\fbox{3}", "3"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
        ("\\boxed{a\\}b}", "a\\}b"),
        ("<think>\\boxed{1}</think>\\boxed{2}", "2"),
        ("\\boxed{1}</think>\\boxed{2}", "2"),
        ("\\boxed{1}<think>\\boxed{2}", "1"),
        ("<thinking>\\boxed{1}</thinking>Answer: 2", "2"),
        ("Answer: 7", "7"),
        ("**Answer:** 7", "7"),
        ("Final answer : $7$.", "$7$."),
        ("ANSWER: 1\nanswer: 2\nbye", "2"),
        ("Answer: 1\n\\boxed{2}", "2"),
        ("work\n#### 18", "18"),
        ("#### 1\n#### 2", "2"),
        ("Answer: 3\n#### 4", "3"),
        ("\\boxed{7", None),
        ("\\boxed{}", None),
        ("\\boxed 7", None),
        ("the answer is 7", None),
        ("## Final Answer\n\n$$\n5\n$$", "$$5$$"),
        ("**Answer:**\n\n\\[\n5\n\\]", "\\[5\\]"),
        ("Answer: $$\n\\frac{1}\n{2}\n$$\nbye $$6$$", "$$\\frac{1} {2}$$"),
        ("## Answer\n$$\n5\n", None),
        ("## Answer\n$$\n\n$$\n5", None),
        ("The final answer is:\n\n$$5$$", "$$5$$"),
        ("The final answer is\n\n\\[\n5\n\\]", "\\[5\\]"),
        ("**The answer is:**\n\n**5**", "**5**"),
        ("The answer is:\n5\n", "5"),
        ("The answer is:\n\n$$5", None),
        ("The answer is:\n\n$$\n5", None),
        ("The answer is 4.\nNo, the answer is:\n", None),
        ("The answer is \\[5\\].", "\\[5\\]"),
        ("The answer is $$5$$", "$$5$$"),
        ("Answer: \n5", "5"),
        ("**Final Answer:**  \n\\(5\\)\n", "\\(5\\)"),
        ("Answer:\r\n5\r\n", "5"),
        ("Answer:\r\n\r\n5\r\n", "5"),
        ("### **Final Answer**\n5\n", "5"),
        ("### Final Answer \n5\n", "5"),
        ("**Final Answer** \n5", "5"),
        ("## Answer\r\n5", "5"),
        ("## Answer\r\n$$\r\n5\r\n$$", "$$5$$"),
        ("Answer: \n \n", None),
        ("## Answer sheet\n5", None),
        ("Answer: 5\r\nnot 6", "5"),
        ("", None),
    ],
)
def test_extract_answer(text, answer):
    assert extract_answer(text) == answer


def test_visible_text_follows_the_last_closing_tag():
    assert visible("a</think>b</think>c") == "c"
    assert visible("a<think>b</think>c<think>d") == "c"
    assert visible("no tags") == "no tags"


def test_extract_code_prefers_the_block_with_the_entry_point():
    text = "```python\ndef f(): pass\n```\ntext\n```python\nf()\n```"
    assert extract_code(text, "f") == "def f(): pass\n"
    assert extract_code(text) == "f()\n"
    assert extract_code("```python\nf()\n```\nprints\n```\n1\n```") == "f()\n"
    assert extract_code("```python\nf()\n```\n```\ndef f(): pass\n```", "f") == "def f(): pass\n"
    assert extract_code("```js\nf()\n```") is None
    assert extract_code("plain") == "plain"
    assert extract_code("````python\n```\ninner\n```\n````") == "```\ninner\n```\n"


@pytest.mark.parametrize("indent", ["   ", "    ", "\t", "          "])
def test_code_in_a_list_item_has_the_indentation_of_its_fence_taken_away(indent):
    code = 'def f():\n    """\n    ```\n    f()\n    ```\n    """\n\n    return 1\n'
    lines = ["```python", *code.splitlines(), "```"]
    text = "1. Solution:\n" + "".join(f"{indent}{line}".rstrip() + "\n" for line in lines)
    assert extract_code(text + "2. Done.\n", "f") == code
    assert extract_code(code, "f") == code
    assert extract_code(f"```\n{code}```", "f") == code


@pytest.mark.parametrize(
    ("answer", "gold", "equal"),
    [
        ("1,234", "1234", True),
        ("1,23", "123", False),
        ("2/4", "\\frac{1}{2}", True),
        ("1/3", "1/2", False),
        ("0.5", "1/2", True),
        ("0.3333", "1/3", False),
        ("1/0", "1/0", True),
        ("1/0", "5", None),
        ("x", "5", None),
        ("silent", "listen", False),
        ("xy", "yx", None),
        ("50\\%", "\\frac{1}{2}", True),
        ("50\\%", "50", True),
        ("50\\%", "51", False),
        ("6:8", "3:4", True),
        ("0:5", "0:3", False),
        ("0:2:3", "0:1:5", False),
        ("0:0", "3:4", False),
        ("0 : 5", "0:5", True),
    ],
)
def test_exact_decisions(answer, gold, equal):
    assert exact.decide(normalise(answer), normalise(gold)) is equal


def test_normalise_keeps_rows_of_matrices():
    matrix = "\\begin{pmatrix}1\\\\(2)\\\\[3]\\\\ 4\\end{pmatrix}"
    assert normalise(matrix) == matrix
    assert normalise("\\left( 1,\\; 2 \\right).") == "( 1, 2 )"
    assert normalise("\\leftarrow") == "\\leftarrow"
    assert normalise("\\(x\\).") == "x"


def test_sizes_are_refused_with_their_limit():
    assert "2000" in oversized("x" * 2001)
    assert "40" in oversized("{" * 41)
    assert "400" in oversized("1" * 401)
    assert oversized("{" * 40 + "1" * 400) is None


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("120,240", "120, 240", True),
        ("240,120", "120, 240", True),
        ("100,200,300", "100, 200, 300", True),
        ("120,240", "\\{120, 240\\}", True),
        ("120,240", "(120, 240)", True),
        ("240,120", "(120, 240)", False),
        ("120,241", "120, 240", False),
        ("1,234 \\text{ and } 5", "1234, 5", True),
        ("120,240", "120240", True),
        ("120, 240", "120240", False),
        ("240, 120", "120,240", False),
    ],
)
def test_commas_separate_where_the_gold_is_a_list(answer, gold, right):
    assert decide_without_algebra(f"\\boxed{{{answer}}}", gold).correct is right
