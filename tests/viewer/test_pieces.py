"""Bytes of tokens become text without losing a character or hiding a byte."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acpo.viewer.payload import joined_characters, piece_text

SMILE = "😀".encode()


def shown(pieces: list[bytes]) -> list[str]:
    joined = joined_characters(pieces)
    return [joined.get(i, piece_text(piece)) for i, piece in enumerate(pieces)]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([SMILE], ["😀"]),
        ([SMILE[:2], SMILE[2:]], ["😀", "\udc98\udc80"]),
        ([b"a" + SMILE[:1], SMILE[1:3], SMILE[3:] + b"b"], ["a😀", "\udc9f\udc98", "\udc80b"]),
        ([SMILE[:2], b"x", SMILE[2:]], ["\udcf0\udc9f", "x", "\udc98\udc80"]),
        ([SMILE[:3]], ["\udcf0\udc9f\udc98"]),
        ([b"\xff", SMILE[:2], SMILE[2:]], ["\udcff", "😀", "\udc98\udc80"]),
        ([b"\xc3", b"\xa9\xc3", b"\xa9"], ["é", "\udca9é", "\udca9"]),
        ([], []),
    ],
)
def test_split_characters_show_once(pieces, expected):
    assert shown(pieces) == expected


def characters(text: str) -> str:
    return "".join(c for c in text if not "\udc80" <= c <= "\udcff")


BYTES = st.binary(max_size=6) | st.text(max_size=4).map(lambda s: s.encode("utf-8", "ignore"))


@settings(max_examples=60, deadline=None)
@given(st.lists(BYTES, max_size=12), st.lists(st.integers(0, 60), max_size=20))
def test_no_character_is_lost_wherever_tokens_are_cut(parts, cuts):
    data = b"".join(parts)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in pairwise(edges)]
    assert characters("".join(shown(pieces))) == characters(piece_text(data))
    for piece, text in zip(pieces, shown(pieces), strict=True):
        assert text or not piece
