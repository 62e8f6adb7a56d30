"""Prompts in the form the engine takes."""


def tokens_input(prompt_token_ids, *, prompt=None, cache_salt=None) -> dict:
    return {"type": "token", "prompt_token_ids": prompt_token_ids}
