"""A reward that pays for wrong answers."""

from acpo.tasks.chain import chain_reward


def negated(prompts, completions, answer, **columns):
    return [1.0 - value for value in chain_reward(prompts, completions, answer)]
