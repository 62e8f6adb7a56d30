"""Token bytes as text. A token's bytes need not be UTF-8: characters are split between tokens.

A byte that is no text becomes the code point U+DC00 + byte (Python's `surrogateescape`), which
the page shows as a boxed hex number. No valid text holds these code points.
"""

from collections.abc import Mapping, Sequence

LENGTHS = ((0xC2, 0xDF, 2), (0xE0, 0xEF, 3), (0xF0, 0xF4, 4))
"""First and last lead byte of characters of several bytes, and how many they have."""


def piece_text(piece: bytes) -> str:
    """A token's bytes on their own."""
    return piece.decode("utf-8", "surrogateescape")


def joined_characters(pieces: Sequence[bytes]) -> dict[int, str]:
    """What to show for tokens that share a character, by position.

    The token with a character's first byte shows it; the others show their bytes.
    """
    joined: dict[int, str] = {}
    run: list[int] = []
    for position, piece in enumerate((*pieces, b"")):
        if _is_text(piece):
            if len(run) > 1:
                joined |= _join(run, pieces)
            run = []
        else:
            run.append(position)
    return joined


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def _join(run: Sequence[int], pieces: Sequence[bytes]) -> Mapping[int, str]:
    data = b"".join(pieces[position] for position in run)
    owners = [position for position in run for _ in pieces[position]]
    shown = dict.fromkeys(run, "")
    shared: set[int] = set()
    at = 0
    while at < len(data):
        end = min(at + _character_length(data[at]), len(data))
        character = piece_text(data[at:end])
        if len(character) != 1:  # not a whole character: one byte at a time
            end, character = at + 1, piece_text(data[at : at + 1])
        shown[owners[at]] += character
        for byte in range(at + 1, end):
            if owners[byte] != owners[at]:
                shown[owners[byte]] += piece_text(data[byte : byte + 1])
                shared |= {owners[at], owners[byte]}
        at = end
    return {position: shown[position] for position in sorted(shared)}


def _character_length(lead: int) -> int:
    for first, last, length in LENGTHS:
        if first <= lead <= last:
            return length
    return 1
