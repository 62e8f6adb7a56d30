"""Checkpoints that are either whole or not there.

A checkpoint is written to a staging folder, described by a manifest, flushed, and renamed into
place. A run killed at any moment leaves the previous checkpoint untouched; a folder whose files do
not match its manifest is recognised and passed over. Beside what transformers saves, it holds the
rollout in use and the place in it, so that a resumed run takes the step it would have taken.
"""

import json
import os
import re
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import logging

from acpo.errors import ACPOError

logger = logging.get_logger(__name__)

STAGING = "_writing"
MANIFEST = "acpo_manifest.json"
SAMPLE = 1 << 20


def _fingerprint(path: Path) -> dict[str, int]:
    """Size, and a checksum of the first and last mebibyte."""
    size = path.stat().st_size
    with path.open("rb") as file:
        checksum = zlib.crc32(file.read(SAMPLE))
        if size > SAMPLE:
            file.seek(max(SAMPLE, size - SAMPLE))
            checksum = zlib.crc32(file.read(), checksum)
    return {"bytes": size, "crc32": checksum}


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(staged: Path, final: Path) -> None:
    """Describe, flush and rename a finished checkpoint."""
    files = sorted(p for p in staged.rglob("*") if p.is_file() and p.name != MANIFEST)
    manifest = {str(p.relative_to(staged)): _fingerprint(p) for p in files}
    (staged / MANIFEST).write_text(json.dumps(manifest, indent=1))
    for path in [*files, staged / MANIFEST, staged]:
        _flush(path)
    if final.exists():
        os.replace(final, staged.parent / f"replaced-{final.name}")
    os.replace(staged, final)
    _flush(final.parent)
    shutil.rmtree(staged.parent, ignore_errors=True)


def problem(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint; None if it is whole."""
    manifest = checkpoint / MANIFEST
    if not manifest.is_file():
        return f"{manifest.name} is missing"
    try:
        described = json.loads(manifest.read_text())
    except ValueError:
        return f"{manifest.name} is not readable"
    for name, expected in described.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        found = _fingerprint(path)
        if found != expected:
            return f"{name} has {found['bytes']} of {expected['bytes']} bytes, or other content"
    return None


def whole_checkpoints(folder: Path) -> tuple[list[Path], dict[Path, str]]:
    """The usable checkpoints of a run, oldest first, and what is wrong with the others."""
    if not folder.is_dir():
        return [], {}
    numbered = [(int(m[1]), p) for p in folder.iterdir() if (m := _numbered(p.name))]
    problems = {path: problem(path) for _, path in sorted(numbered)}
    whole = [path for path, wrong in problems.items() if wrong is None]
    return whole, {path: wrong for path, wrong in problems.items() if wrong is not None}


def _numbered(name: str) -> re.Match[str] | None:
    return re.fullmatch(r"checkpoint-(\d+)", name)


def forget_old(folder: Path, limit: int | None, *, keep: str | None) -> None:
    """Delete the oldest checkpoints beyond `limit`; the newest and the one to keep stay."""
    if not limit:
        return
    numbered = [(int(m[1]), p) for p in folder.iterdir() if (m := _numbered(p.name))]
    paths = [path for _, path in sorted(numbered)]
    spared = {paths[-1], *([Path(keep)] if keep else [])}
    surplus = len(paths) - max(limit, len(spared))
    for path in [p for p in paths if p not in spared][: max(surplus, 0)]:
        shutil.rmtree(path, ignore_errors=True)


def require_whole(checkpoint: Path) -> None:
    """Raise unless a checkpoint named by the user can be resumed from exactly."""
    wrong = problem(checkpoint)
    if wrong is None:
        return
    usable, _ = whole_checkpoints(checkpoint.parent)
    remedy = f"use {usable[-1]}" if usable else "start without resume_from_checkpoint"
    raise ACPOError(f"resume_from_checkpoint={str(checkpoint)!r}: {wrong}; {remedy}")


def save_state(state: dict[str, Any], folder: str, rank: int) -> None:
    """Write one process's part of the run that transformers does not know about."""
    torch.save(state, Path(folder) / f"acpo_state_{rank}.pt")


def load_state(folder: str, rank: int) -> dict[str, Any]:
    """Read what `save_state` wrote."""
    path = Path(folder) / f"acpo_state_{rank}.pt"
    if not path.is_file():
        raise ACPOError(
            f"{path} is missing; resume with the number of processes the checkpoint was written "
            "by, and write checkpoints without save_only_model"
        )
    return torch.load(path, map_location="cpu", weights_only=True)


def to_resume_from(asked: Any, folder: Path) -> str | None:
    """The checkpoint a run continues from; None starts from the model.

    Args:
        asked: a path, or True for the latest whole checkpoint. One that was cut short is passed
            over with a warning; a run killed before its first checkpoint starts over.
        folder: where the run writes.
    """
    if asked is not True:
        if asked:
            require_whole(Path(asked))
        return asked or None
    usable, broken = whole_checkpoints(folder)
    for path, wrong in broken.items():
        logger.warning(f"{path} is not used: {wrong}")
    if not usable:
        logger.warning(f"no checkpoint in {folder}; starting from the model")
    return str(usable[-1]) if usable else None


class Staging:
    """Where a trainer's checkpoint is written before it gets its name.

    Attributes:
        folder: the staging folder while a checkpoint is being written, else None.
        unpushed: whether an upload waits for the checkpoint's final name.
    """

    folder: Path | None = None
    unpushed: bool = False

    @contextmanager
    def of(self, trainer: Any, folder: Path) -> Iterator[None]:
        """Write inside; the checkpoint of the trainer's step is in `folder` afterwards."""
        name = f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"
        staging, accelerator = folder / STAGING, trainer.accelerator
        each_node = trainer.args.save_on_each_node
        writes = accelerator.is_local_main_process if each_node else accelerator.is_main_process
        if writes:
            shutil.rmtree(staging, ignore_errors=True)
        accelerator.wait_for_everyone()
        self.folder = staging
        try:
            yield
        finally:
            self.folder = None
        accelerator.wait_for_everyone()
        best = trainer.state.best_model_checkpoint
        if best is not None and Path(best).parent == staging:
            trainer.state.best_model_checkpoint = str(folder / name)
            if trainer.args.should_save:
                trainer.state.save_to_json(str(staging / name / TRAINER_STATE_NAME))
        if writes:
            publish(staging / name, folder / name)
            keep = trainer.state.best_model_checkpoint
            forget_old(folder, trainer.args.save_total_limit, keep=keep)
        accelerator.wait_for_everyone()


def save_trainer(trainer: Any, folder: str) -> None:
    """Write what transformers does not know of a trainer, one file per process."""
    state = {
        "step": trainer._step,
        "rollout": trainer._buffered_inputs,
        "fresh_prompts": trainer.rollouts.fresh_prompts.position,
        "measured": trainer.rollouts.measured,
        "budget": trainer.packed.settings.budget,
        "guard": trainer.guard.state(),
    }
    save_state(state, folder, trainer.accelerator.process_index)


def load_trainer(trainer: Any, folder: str) -> None:
    """Put back what `save_trainer` wrote."""
    state = load_state(folder, trainer.accelerator.process_index)
    device = trainer.accelerator.device
    trainer._step = state["step"]
    trainer._buffered_inputs = state["rollout"] and [
        {k: v.to(device) if hasattr(v, "to") else v for k, v in part.items()}
        for part in state["rollout"]
    ]
    trainer.rollouts.fresh_prompts.position = state["fresh_prompts"]
    trainer.packed.settings.budget = state["budget"]
    trainer.guard.load(state["guard"])
    trainer.rollouts.set_measured(state["measured"])
