"""A model small enough to learn on a laptop: Qwen3's architecture over the chain alphabet."""

from typing import TYPE_CHECKING

from acpo.tasks.chain import ALPHABET

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

PAD, EOS = "<pad>", "<eos>"


def chain_tokenizer() -> "PreTrainedTokenizerFast":
    """One token per character of the chain alphabet, plus padding and end of sequence."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate([PAD, EOS, *ALPHABET])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, eos_token=EOS, padding_side="left"
    )


def tiny_model(
    vocab_size: int = len(ALPHABET) + 2,
    *,
    hidden_size: int = 64,
    layers: int = 2,
    tied: bool = True,
    seed: int = 0,
) -> "Qwen3ForCausalLM":
    """A randomly initialised Qwen3 model of about 0.1 M parameters, with heads 16 wide."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    heads = hidden_size // 16
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=tied,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        attention_dropout=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)
