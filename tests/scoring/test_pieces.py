"""Pieces join to the text, and every token knows the characters it is part of."""

import random
from pathlib import Path

import numpy as np
import pytest
from tokenizers import decoders
from transformers import AutoTokenizer

from acpo.scoring.pieces import Pieces, place
from scoring.tokenizers_at_hand import byte_fallback, byte_level, word_level

CHAIN = Path(__file__).resolve().parents[2] / "src/acpo/tasks/checkpoints/chain"
TEXTS = ["the cat", " naïve  café\n", "🧑‍🚀 sat", "日本 é 🎉🎉", "\x00\t", "<think>x</think>", ""]


@pytest.mark.parametrize("make", [byte_level, byte_fallback])
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_what_the_tokenizer_decodes(make, text):
    tokenizer = make()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    placed = Pieces(tokenizer).place(ids)
    assert placed.text == text
    assert tokenizer.decode(ids) in (text, text.removeprefix(" "))  # sentencepiece strips one


def test_a_split_emoji_is_one_place_for_all_its_tokens():
    tokenizer = byte_level()
    pieces = Pieces(tokenizer)
    ids = tokenizer("a🎉b")["input_ids"]
    assert b"".join(pieces.of(ids)) == "a🎉b".encode() and len(ids) == 6
    placed = pieces.place(ids)
    spans = list(zip(placed.starts.tolist(), placed.ends.tolist(), strict=True))
    assert spans == [(0, 1), (1, 2), (1, 2), (1, 2), (1, 2), (2, 3)]


def test_a_token_across_characters_covers_them_all():
    # The second piece ends é, holds b and begins 日.
    placed = place([b"a\xc3", b"\xa9b\xe6", b"\x97\xa5"])
    assert placed.text == "aéb日"
    assert placed.starts.tolist() == [0, 1, 3] and placed.ends.tolist() == [2, 4, 4]


def test_byte_fallback_tokens_are_bytes():
    tokenizer = byte_fallback()
    ids = tokenizer(" the é🎉")["input_ids"]
    pieces = Pieces(tokenizer)
    assert pieces.of(ids).tolist() == [
        b" the",
        b" ",
        "é".encode(),
        *(bytes([b]) for b in "🎉".encode()),
    ]
    placed = pieces.place(ids)
    assert placed.text == " the é🎉" and placed.starts.tolist()[-4:] == [6] * 4
    # What looks like a byte token but was written by the user is text in a byte-level vocabulary.
    other = byte_level()
    assert Pieces(other).place(other("<0x41>")["input_ids"]).text == "<0x41>"


def test_special_tokens_take_no_place_and_added_ones_do():
    tokenizer = byte_level()
    end, think = tokenizer.convert_tokens_to_ids(["<|end|>", "<think>"])
    a = tokenizer("a")["input_ids"]
    pieces = Pieces(tokenizer)
    ids = [think, *a, end, *a, end]
    placed = pieces.place(ids)
    assert placed.text == "<think>aa" == tokenizer.decode(ids, skip_special_tokens=True)
    assert placed.starts.tolist() == [0, 7, 8, 8, 9] and placed.ends.tolist() == [7, 8, 8, 9, 9]
    assert pieces.of(ids).tolist() == [b"<think>", b"a", b"<|end|>", b"a", b"<|end|>"]
    assert pieces.read(ids) == "<think>a<|end|>a<|end|>"


def test_ids_beyond_the_tokenizer_are_empty():
    tokenizer = byte_level()
    pieces = Pieces(tokenizer)
    assert pieces.of([len(tokenizer) + 5]).tolist() == [b""]
    placed = pieces.place([*tokenizer("a")["input_ids"], len(tokenizer) + 5])
    assert placed.text == "a" and placed.ends.tolist() == [1, 1]


def test_pieces_keep_the_shape_of_the_ids():
    pieces = Pieces(byte_level())
    assert pieces.of(np.zeros((3, 5), dtype=np.int32)).shape == (3, 5)
    assert pieces.of(np.zeros((0, 5), dtype=np.int32)).shape == (0, 5)
    assert pieces.place([]).text == "" and len(pieces.place([]).starts) == 0


@pytest.mark.parametrize(
    ("decoder", "expected"),
    [
        (None, " un ##do cat é"),
        (decoders.WordPiece(), " undo cat é"),
        (decoders.Fuse(), "un##docaté"),
    ],
)
def test_vocabularies_of_words(decoder, expected):
    tokenizer = word_level(decoder)
    assert Pieces(tokenizer).place([2, 3, 4, 5, 0]).text == expected
    assert tokenizer.decode([2, 3, 4, 5], skip_special_tokens=True) == expected.strip()


def test_the_packaged_tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(CHAIN)
    placed = Pieces(tokenizer).place([*tokenizer("7*8=6")["input_ids"], tokenizer.eos_token_id])
    assert placed.text == "7*8=6" and placed.starts.tolist() == [0, 1, 2, 3, 4, 5]


def test_hostile_bytes_never_break_the_count():
    rng = random.Random(0)
    alphabet = [*range(256), *b"\xf0\x9f\x8e\x89\xef\xbf\xbd\xed\xa0\x80\xc0\xe2\x82" * 12]
    for _ in range(400):
        pieces = [
            bytes(rng.choices(alphabet, k=rng.randrange(4))) for _ in range(rng.randrange(12))
        ]
        data = b"".join(pieces)
        placed = place(pieces)
        assert placed.text == data.decode("utf-8", "replace")
        position = 0
        for piece, start, end in zip(pieces, placed.starts, placed.ends, strict=True):
            assert 0 <= start <= end <= len(placed.text) and (end > start) == bool(piece)
            # Cut before a character's first byte, the text so far is that many characters.
            before = data[:position].decode("utf-8", "replace")
            assert len(before) in (start, start + 1)
            position += len(piece)
        ends = placed.ends[[bool(piece) for piece in pieces]]
        assert (np.diff(placed.starts) >= 0).all() and (np.diff(ends) >= 0).all()


def test_a_long_run_of_invalid_bytes_is_quick():
    placed = place([b"\xff"] * 200_000)
    assert placed.text == "\N{REPLACEMENT CHARACTER}" * 200_000
    assert (placed.starts == np.arange(200_000)).all() and (placed.ends == placed.starts + 1).all()
