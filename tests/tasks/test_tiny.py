from pathlib import Path

import torch

import acpo.tasks
from acpo.tasks.chain import ALPHABET
from tasks.tiny import chain_tokenizer, tiny_model

CHECKPOINT = Path(acpo.tasks.__file__).parent / "checkpoints" / "chain"


def test_one_token_per_character_and_back():
    tokenizer = chain_tokenizer()
    ids = tokenizer("7*8+6-9:")["input_ids"]
    assert len(ids) == 8
    assert tokenizer.decode(ids) == "7*8+6-9:"
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == "7*8+6-9:"
    assert sorted(tokenizer(ALPHABET)["input_ids"]) == list(range(2, 2 + len(ALPHABET)))


def test_model_is_tiny_and_repeats_with_its_seed():
    first, again, other = tiny_model(seed=1), tiny_model(seed=1), tiny_model(seed=2)
    assert first.num_parameters() < 200_000
    pairs = list(zip(first.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(first.model.embed_tokens.weight, other.model.embed_tokens.weight)
    assert tiny_model(tied=False).lm_head.weight.data_ptr() != first.lm_head.weight.data_ptr()


def test_shipped_files_are_small():
    assert sum(file.stat().st_size for file in CHECKPOINT.iterdir()) < 2 << 20
