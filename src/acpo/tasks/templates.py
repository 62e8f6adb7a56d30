"""What stands around a problem in its prompt, so that the verifier can find the answer."""

from acpo.errors import ACPOError

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
    "{problem}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
BOXED = "{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{}."
GSM8K = (
    "{problem}\n\nReason step by step. End with a line of the form #### N, where N is the answer "
    "as a number."
)

TEMPLATES = {"dapo": DAPO, "boxed": BOXED, "gsm8k": GSM8K, "plain": "{problem}"}
"""Templates by name. A recipe may also give its own text, with `{problem}` in it."""


def get_template(template: str) -> str:
    """The text of a named template, or `template` itself where it is one.

    Raises:
        ACPOError: for an unknown name, or a text in which `{problem}` does not occur once.
    """
    text = TEMPLATES.get(template, template)
    if text.count("{problem}") != 1:
        raise ACPOError(
            f"template={template!r} is neither one of {', '.join(TEMPLATES)} nor a text that "
            "contains {problem} once"
        )
    return text


def fill(template: str, problem: str) -> str:
    """The prompt for one problem. Braces in the problem stay as they are."""
    return template.replace("{problem}", problem)


def strip(template: str, prompt: str) -> str:
    """The problem inside a prompt that `template` was put around, else the prompt itself."""
    head, _, tail = template.partition("{problem}")
    if prompt.startswith(head) and prompt.endswith(tail):
        return prompt[len(head) : len(prompt) - len(tail)]
    return prompt
