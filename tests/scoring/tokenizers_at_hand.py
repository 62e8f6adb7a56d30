"""Small tokenizers of each kind, made on the spot."""

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

SPECIAL = {"eos_token": "<|end|>", "pad_token": "<|pad|>"}


def byte_level() -> PreTrainedTokenizerFast:
    """Byte-level BPE, as of GPT-2 and Qwen, trained on too little to know an emoji."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL.values()),
        show_progress=False,
    )
    backend.train_from_iterator(["the cat sat on the mat, naïve café"] * 8, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL)
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return tokenizer


def byte_fallback() -> PreTrainedTokenizerFast:
    """Sentencepiece BPE with byte fallback, as of Llama 2 and Gemma."""
    words = ["<unk>", "<|end|>", "<|pad|>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["\u2581", "t", "h", "e", "\u2581t", "he", "\u2581the", "c", "a", "é"]
    merges = [("\u2581", "t"), ("h", "e"), ("\u2581t", "he")]
    vocabulary = {word: number for number, word in enumerate(words)}
    model = models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", **SPECIAL)


def word_level(decoder=None) -> PreTrainedTokenizerFast:
    """Whole words, with the decoder given."""
    words = ["<|end|>", "<|pad|>", "un", "##do", "cat", "é"]
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="un"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if decoder is not None:
        backend.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL)
