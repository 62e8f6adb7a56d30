"""Which completions are compared: right with wrong ones of the same prompt.

The paper's appendix "Annotation Protocol": failures by length only are left out, prompts need both
right and wrong completions, and every right one is paired with every wrong one.
"""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np

from acpo.errors import ACPOError
from acpo.records import Trace


class Chars(NamedTuple):
    """Characters `start` to `end` of a completion, the end excluded."""

    start: int
    end: int


class Span(NamedTuple):
    """Tokens `first` to `end` of a completion, the end excluded."""

    first: int
    end: int


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One completion, with the characters each of its tokens stands for."""

    prompt_id: str
    sample: int  # its number among the prompt's completions
    row: int  # in the trace
    rows: slice  # of its tokens there
    prompt: str  # what the model read
    completion: str
    answer: str | None  # gold, where the trace has it
    starts: np.ndarray  # [tokens] first character of each token
    ends: np.ndarray  # [tokens] character after the last of each token

    @property
    def length(self) -> int:
        """Tokens."""
        return len(self.starts)

    def tokens(self, chars: Chars) -> Span | None:
        """The tokens that have a character of `chars`; None where no token has one."""
        touched = np.flatnonzero((self.starts < chars.end) & (self.ends > chars.start))
        return Span(int(touched[0]), int(touched[-1]) + 1) if len(touched) else None

    def chars(self, span: Span) -> Chars:
        """The characters of the tokens of `span`."""
        return Chars(int(self.starts[span.first]), int(self.ends[span.end - 1]))


@dataclass(frozen=True)
class PromptPairs:
    """The completions of one prompt that are compared."""

    prompt_id: str
    right: tuple[Trajectory, ...]
    wrong: tuple[Trajectory, ...]


@dataclass(frozen=True)
class Selection:
    """What of a trace is compared, and what was left out."""

    groups: tuple[PromptPairs, ...]  # one per prompt
    step: int  # the optimizer step the completions are of
    fingerprint: str  # of all completions of that step: annotations fit no other
    counts: dict[str, int]  # how many completions, prompts and pairs were kept and left out

    @property
    def pairs(self) -> Iterator[tuple[Trajectory, Trajectory]]:
        """Every (wrong, right)."""
        return chain.from_iterable(product(group.wrong, group.right) for group in self.groups)


def select(trace: Trace, *, step: int | None = None, limit: int | None = None) -> Selection:
    """Choose what is compared. A completion is right when its reward is above 0.

    The trace needs the token columns `start` and `end`, and the optimizer step a name where it
    holds several; `limit` counts prompts that have both right and wrong completions.
    """
    trace.require("start", "end")
    rows = trace.rollouts.to_pylist()
    step = _the_step(trace, {row["step"] for row in rows}, step)
    counts = dict.fromkeys(("completions", "no_verdict", "length_failures"), 0)
    split: dict[str, tuple[list[Trajectory], list[Trajectory]]] = defaultdict(lambda: ([], []))
    digest = hashlib.sha256()
    seen: set[tuple[str, int]] = set()
    columns = trace.tokens("start", "end")
    for number, row in enumerate(rows):
        if row["step"] != step:
            continue
        key = (row["prompt_id"], row["sample"])
        if key in seen:
            raise ACPOError(f"{trace.path}: sample {key[1]} of prompt {key[0]!r} is there twice")
        seen.add(key)
        named = ("prompt_id", "sample", "prompt", "completion", "reward", "truncated", "tokens")
        digest.update(json.dumps([row[name] for name in named]).encode())
        counts["completions"] += 1
        split[row["prompt_id"]]
        reward = math.nan if row["reward"] is None else row["reward"]
        if math.isnan(reward) or row["completion"] is None:
            counts["no_verdict"] += 1
        elif reward <= 0 and row["truncated"]:
            counts["length_failures"] += 1
        else:
            trajectory = _trajectory(trace, number, row, columns)
            split[row["prompt_id"]][reward <= 0].append(trajectory)
    both = [
        PromptPairs(prompt, tuple(right), tuple(wrong))
        for prompt, (right, wrong) in split.items()
        if right and wrong
    ]
    counts["one_sided_prompts"] = len(split) - len(both)
    groups = tuple(both[:limit])
    if not groups:
        raise ACPOError(
            f"{trace.path}: no prompt of step {step} has both right and wrong completions that "
            f"ended by themselves ({counts['completions']} completions of {len(split)} prompts, "
            f"{counts['length_failures']} failures by length, {counts['no_verdict']} without a "
            "verdict): trace more prompts or more samples of each"
        )
    return Selection(groups, step, digest.hexdigest()[:32], counts | _kept(groups))


def _kept(groups: Sequence[PromptPairs]) -> dict[str, int]:
    return {
        "prompts": len(groups),
        "right": sum(len(group.right) for group in groups),
        "wrong": sum(len(group.wrong) for group in groups),
        "pairs": sum(len(group.right) * len(group.wrong) for group in groups),
    }


def _the_step(trace: Trace, steps: set[int], asked: int | None) -> int:
    if asked is None and len(steps) == 1:
        return steps.pop()
    if asked not in steps:
        listed = ", ".join(map(str, sorted(steps)[:20]))
        raise ACPOError(f"--step {asked}: {trace.path} holds the steps {listed}: choose one")
    assert asked is not None
    return asked


def _trajectory(
    trace: Trace, number: int, row: dict[str, Any], columns: dict[str, np.ndarray]
) -> Trajectory:
    rows = slice(*trace.starts[number : number + 2].tolist())
    starts, ends = columns["start"][rows], columns["end"][rows]
    size = len(row["completion"])
    in_order = (starts >= 0).all() and (np.diff(starts) >= 0).all() and (ends <= size).all()
    if not in_order or (starts > ends).any():
        raise ACPOError(
            f"{trace.path}: the tokens of sample {row['sample']} of prompt {row['prompt_id']!r} "
            "do not stand in its completion: the trace is damaged"
        )
    return Trajectory(
        prompt_id=row["prompt_id"],
        sample=row["sample"],
        row=number,
        rows=rows,
        prompt=row["prompt"] or "",
        completion=row["completion"],
        answer=row["answer"],
        starts=starts,
        ends=ends,
    )
