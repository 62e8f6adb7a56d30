"""Prompts in the form the engine takes."""

from vllm.made import signed


@signed("tokens_input")
def tokens_input(prompt_token_ids, **options) -> dict:
    return {"type": "token", "prompt_token_ids": prompt_token_ids}
