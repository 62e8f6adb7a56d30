"""What a study consists of, once its file is checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        name: what the report calls it.
        method: a row of `METHODS`.
        options: options of the recipe for this row alone.
        seed_offset: added to every seed, to give two equal rows different ones.
    """

    name: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    seed_offset: int = 0


@dataclass(frozen=True)
class Task:
    """One setting all rows are run in; its learning rates are swept here or in `sweep_of`."""

    name: str
    recipe: Path
    options: Mapping[str, Any]
    rows: tuple[Row, ...]
    updates: int
    seeds: tuple[int, ...]
    sweep_of: str


@dataclass(frozen=True)
class Sweep:
    """How learning rates are chosen.

    Attributes:
        learning_rates: the candidates.
        seeds: not among the study's.
        updates: length of a sweep run.
        share: the part of the training problems kept for the sweep; study runs never see it.
    """

    learning_rates: tuple[float, ...]
    seeds: tuple[int, ...]
    updates: int
    share: float = 0.2


@dataclass(frozen=True)
class WarmStart:
    """Settings of the supervised training.

    Attributes:
        solution_columns: where worked solutions may stand, tried in order.
        epochs: passes over the training problems.
        learning_rate: at its peak; a linear rise over 5% of the steps, then a linear fall.
        batch_size: solutions per step.
        max_tokens: longer examples are left out.
        seed: of the order.
    """

    solution_columns: tuple[str, ...] = ("solution", "answer")
    epochs: int = 2
    learning_rate: float = 1e-4
    batch_size: int = 32
    max_tokens: int = 512
    seed: int = 0


@dataclass(frozen=True)
class Study:
    """A checked study file; see `acpo.compare.study.KEYS`."""

    path: Path
    title: str
    options: Mapping[str, Any]
    overrides: Mapping[str, Any]
    tasks: tuple[Task, ...]
    sweep: Sweep | None
    warm_start: WarmStart | None = None
    keep_models: bool = False
    threads: int = 1
    launcher: str | None = None
    note: str = ""
