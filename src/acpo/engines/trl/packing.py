"""Laying sequences into packs: which go together, and where each token stands.

Two layouts. "packed" joins sequences end to end in one row, so that no padding reaches the
backbone; it needs variable-length attention. "padded" puts sequences of similar length in the rows
of a rectangle. Everything here runs on the CPU and is a function of its arguments alone.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Layout = Literal["packed", "padded"]


class Rows(NamedTuple):
    """The sequences of a mini-batch as spans of an id matrix.

    Attributes:
        start: first column of each row's prompt.
        length: tokens of each row that go through the backbone. The last target predicts nothing,
            so it is not among them.
        targets: per row, the columns whose tokens are predicted.
    """

    start: list[int]
    length: list[int]
    targets: list[Tensor]


class Pack(NamedTuple):
    """One forward pass, as indices into a mini-batch.

    Attributes:
        shape: rows and columns of the backbone's input.
        source: `[rows * columns]` flat indices into the id matrix; padding points at index 0.
        positions: `[rows * columns]` position of each token in its sequence.
        valid: `[rows * columns]`, false at padding.
        boundaries: cumulative sequence lengths.
        longest: tokens of the longest sequence.
        states: `[n]` flat indices of the states that predict each target.
        rows: `[n]` mini-batch row of each target; a sequence's targets are consecutive.
        columns: `[n]` column of each target in the id matrix.
    """

    shape: tuple[int, int]
    source: Tensor
    positions: Tensor
    valid: Tensor
    boundaries: Tensor
    longest: int
    states: Tensor
    rows: Tensor
    columns: Tensor

    @property
    def tokens(self) -> int:
        """Tokens that are not padding."""
        return int(self.boundaries[-1])


def find_rows(*, attended: Tensor, targets: Tensor) -> Rows:
    """Where each sequence starts and how far it must be read to predict its targets.

    Args:
        attended: `[B, L]`, true from a row's first prompt token to its last completion token.
        targets: `[B, L]`, true at tokens to predict; subset of `attended`.
    """
    start = attended.int().argmax(1).tolist()
    columns = [row.nonzero()[:, 0] for row in targets]
    length = [int(c[-1]) - s if c.numel() else 0 for c, s in zip(columns, start, strict=True)]
    return Rows(start, length, columns)


def first_fit_decreasing(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Bins of indices whose lengths sum to at most `budget`; a longer sequence stands alone."""
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        for which, free in enumerate(room):
            if lengths[index] <= free:
                bins[which].append(index)
                room[which] -= lengths[index]
                break
        else:
            bins.append([index])
            room.append(budget - lengths[index])
    return bins


def group_by_length(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Groups of similar length whose padded rectangle holds at most `budget` tokens."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if groups and lengths[groups[-1][0]] * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def lay_out(
    rows: Rows, chosen: Sequence[int], *, width: int, budget: int, layout: Layout
) -> list[Pack]:
    """Packs holding the chosen rows of an id matrix with `width` columns."""
    lengths = [rows.length[i] for i in chosen]
    arrange = first_fit_decreasing if layout == "packed" else group_by_length
    return [
        _pack([chosen[i] for i in members], rows, width, layout)
        for members in arrange(lengths, budget)
    ]


def empty_pack() -> Pack:
    """A pass over one token without targets, for a rank that has run out of packs."""
    nothing = torch.zeros(0, dtype=torch.long)
    return Pack(
        (1, 1),
        torch.zeros(1, dtype=torch.long),
        torch.zeros(1, dtype=torch.long),
        torch.ones(1, dtype=torch.bool),
        torch.tensor([0, 1], dtype=torch.int32),
        1,
        nothing,
        nothing,
        nothing,
    )


def _pack(members: list[int], rows: Rows, width: int, layout: Layout) -> Pack:
    lengths = [rows.length[i] for i in members]
    longest = max(lengths)
    step = [longest] * len(members) if layout == "padded" else lengths
    offsets = [0, *torch.tensor(step).cumsum(0).tolist()]
    total = offsets[-1]
    source = torch.zeros(total, dtype=torch.long)
    positions = torch.zeros(total, dtype=torch.long)
    valid = torch.zeros(total, dtype=torch.bool)
    states, owners, columns = [], [], []
    for row, offset, length in zip(members, offsets, lengths, strict=False):
        span = slice(offset, offset + length)
        here = torch.arange(length)
        source[span] = row * width + rows.start[row] + here
        positions[span] = here
        valid[span] = True
        target = rows.targets[row]
        states.append(target - 1 - rows.start[row] + offset)
        owners.append(torch.full_like(target, row))
        columns.append(target)
    shape = (len(members), longest) if layout == "padded" else (1, total)
    boundaries = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    return Pack(
        shape,
        source,
        positions,
        valid,
        boundaries,
        longest,
        torch.cat(states),
        torch.cat(owners),
        torch.cat(columns),
    )
