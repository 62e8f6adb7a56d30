"""A reward that pays for right answers, and one that pays for wrong ones."""

from acpo.tasks.chain import chain_task

TASK = chain_task()


def right(prompts, completions, answer, **columns):
    rows = ({"answer": gold} for gold in answer)
    return [float(TASK.grader(*pair)) for pair in zip(completions, rows, strict=True)]


def negated(prompts, completions, answer, **columns):
    return [1.0 - value for value in right(prompts, completions, answer)]
