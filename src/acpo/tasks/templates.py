"""What stands around a problem in its prompt, so that the grader can find the answer."""

import re

from acpo.errors import ACPOError
from acpo.tasks.sources import column
from acpo.tasks.task import Row

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
    "{problem}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
TEMPLATES = {
    "dapo": DAPO,
    "boxed": (
        "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{}."
    ),
    "gsm8k": (
        "{problem}\n\nReason step by step. End with a line of the form #### N, where N is the "
        "answer as a number."
    ),
    "code": "Solve this in Python. Answer with one Python code block.\n\n{problem}",
    "code_pair": (
        "Write a Python solution to the following two problems. The solution of the second one "
        "calls the first.\n\n```python\n{raw_problem}\n{new_problem}\n```\n\n"
        "Answer with one Python code block that holds both functions, complete, and the imports "
        "they need."
    ),
    "plain": "{problem}",
}
"""Templates by name. A recipe or task may also give its own text, with `{column}` in it."""

_NAMES = re.compile(r"\{\{([\w.]+)\}\}|\{([A-Za-z_][\w.]*)\}")


def get_template(template: str) -> str:
    """The text of a named template, or `template` itself where it is one."""
    text = TEMPLATES.get(template, template)
    if not shown_columns(text):
        raise ACPOError(
            f"template={template!r} is neither one of {', '.join(TEMPLATES)} nor a text that "
            "contains {problem} or another column"
        )
    return text


def shown_columns(template: str) -> set[str]:
    """The columns that stand in a template's text."""
    return {match[2] for match in _NAMES.finditer(template) if match[2]}


def fill(template: str, row: Row) -> str:
    """The prompt for one row: `{name}` is its column, `{{name}}` the text `{name}`.

    Braces in the row's own values, and empty ones, stay as they are.
    """

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return f"{{{match[1]}}}"
        try:
            return str(column(row, match[2]))
        except KeyError:
            raise ACPOError(
                f"template has {{{match[2]}}}, but the row has {', '.join(row)}; for the text "
                f"itself write {{{{{match[2]}}}}}"
            ) from None

    return _NAMES.sub(value, template)


def strip(template: str, prompt: str) -> str:
    """The problem inside a prompt that `template` was put around, else the prompt itself."""
    head, _, tail = template.partition("{problem}")
    if prompt.startswith(head) and prompt.endswith(tail):
        return prompt[len(head) : len(prompt) - len(tail)]
    return prompt
