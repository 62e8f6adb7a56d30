"""Checkpoints that are either whole or not there.

A checkpoint is written to a staging folder, described by a manifest, flushed, and renamed into
place. A run killed at any moment leaves the previous checkpoint untouched; a folder whose files do
not match its manifest is recognised and passed over. Beside what transformers saves, it holds the
rollout in use and the place in it, so that a resumed run takes the step it would have taken.
"""

import json
import mmap
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import xxhash
from accelerate.utils import broadcast_object_list, send_to_device
from datasets import IterableDataset
from safetensors import SafetensorError
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import logging

from acpo.engines.trl import identity
from acpo.errors import ACPOError
from acpo.jsonl import read_if_json
from acpo.linefile import flush_path
from acpo.records import numbered

logger = logging.get_logger(__name__)

STAGING = "_writing"
MANIFEST = "acpo_manifest.json"
REFERENCE = "acpo_reference.pt"
CHECKSUM = "xxh3_128"


class Cost(NamedTuple):
    """What checksums took."""

    bytes: int
    seconds: float

    def __str__(self) -> str:
        rate = self.bytes / max(self.seconds, 1e-9) / 1e9
        return f"{self.bytes / 1e9:.3g} GB in {self.seconds:.2f} s ({rate:.1f} GB/s)"


def _fingerprint(path: Path) -> dict[str, Any]:
    """Size, and a checksum of every byte."""
    size = path.stat().st_size
    digest = xxhash.xxh3_128()
    if size:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            digest.update(content)  # without the interpreter's lock
    return {"bytes": size, CHECKSUM: digest.hexdigest()}


def _fingerprints(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], Cost]:
    began = time.perf_counter()
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        found = list(threads.map(_fingerprint, paths))
    total = sum(each["bytes"] for each in found)
    return found, Cost(total, time.perf_counter() - began)


def publish(staged: Path, final: Path) -> Cost:
    """Describe, flush and rename a finished checkpoint; what describing it took."""
    files = sorted(p for p in staged.rglob("*") if p.is_file() and p.name != MANIFEST)
    found, cost = _fingerprints(files)
    names = [str(p.relative_to(staged)) for p in files]
    (staged / MANIFEST).write_text(json.dumps(dict(zip(names, found, strict=True)), indent=1))
    for path in [*files, staged / MANIFEST, staged]:
        flush_path(path)
    if final.exists():
        os.replace(final, staged.parent / f"replaced-{final.name}")
    os.replace(staged, final)
    flush_path(final.parent)
    shutil.rmtree(staged.parent, ignore_errors=True)
    return cost


def problem(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint; None if it is whole."""
    manifest = checkpoint / MANIFEST
    if not checkpoint.is_dir():
        return "there is no such folder"
    if not manifest.is_file():
        return f"{manifest.name} is missing"
    try:
        described = read_if_json(manifest) or {}
        expected = {str(name): (d["bytes"], d[CHECKSUM]) for name, d in described.items()}
    except (TypeError, KeyError):
        expected = {}
    if not expected:
        return f"{manifest.name} is not readable, or of another version"
    for name, (size, _) in expected.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} of {size} bytes"
    found, cost = _fingerprints([checkpoint / name for name in expected])
    logger.warning_once(f"checked every byte of {checkpoint.name}: {cost}")
    for each, (name, (_, checksum)) in zip(found, expected.items(), strict=True):
        if each[CHECKSUM] != checksum:
            return f"{name} has other content than was written"
    return None


def newest(folder: Path) -> Path | None:
    """The newest checkpoint, whole or not."""
    return next(reversed(numbered(folder)), None)


def newest_whole(folder: Path) -> tuple[Path | None, dict[Path, str]]:
    """The checkpoint to go on from, and what is wrong with those after it."""
    broken: dict[Path, str] = {}
    for path in reversed(numbered(folder)):
        wrong = problem(path)
        if wrong is None:
            return path, broken
        broken[path] = wrong
    return None, broken


def forget_old(folder: Path, limit: int | None, *, step: int, keep: str | None) -> None:
    """Delete checkpoints beyond `limit`, except that of `step`, just written, and one to keep.

    Those of later steps go first: a run that went on from an earlier one has left them behind.
    """
    if limit is None or limit <= 0:
        return
    paths = numbered(folder)
    now = folder / f"{PREFIX_CHECKPOINT_DIR}-{step}"
    # By name: the folder may have been moved since the best one was written.
    spared = {now, *([folder / Path(keep).name] if keep else [])}
    at = paths.index(now)
    surplus = len(paths) - max(limit, len(spared))
    for path in [p for p in paths[at + 1 :] + paths[:at] if p not in spared][: max(surplus, 0)]:
        shutil.rmtree(path, ignore_errors=True)


def require_whole(checkpoint: Path) -> None:
    """Raise unless a checkpoint named by the user can be resumed from exactly."""
    wrong = problem(checkpoint)
    if wrong is None:
        return
    usable, _ = newest_whole(checkpoint.parent)
    remedy = f"use {usable}" if usable else "start without resume_from_checkpoint"
    raise ACPOError(f"resume_from_checkpoint={str(checkpoint)!r}: {wrong}; {remedy}")


def _state_file(folder: str, rank: int) -> Path:
    return Path(folder) / f"acpo_state_{rank}.pt"


def load_state(folder: str, rank: int) -> dict[str, Any]:
    """One process's part of what `save_trainer` wrote."""
    path = _state_file(folder, rank)
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
    usable, broken = newest_whole(folder)
    for path, wrong in broken.items():
        logger.warning(f"{path} is not used: {wrong}")
    if not usable:
        logger.warning(f"no checkpoint in {folder}; starting from the model")
    return str(usable) if usable else None


def begin(trainer: Any, asked: Any) -> str | None:
    """Claim the output folder for a trainer's run; the checkpoint it goes on from, if any.

    One process looks, since checksums read whole files, and tells the others. Refused are a
    damaged checkpoint, one of another run, and a folder that holds another run.
    """
    outcome: list[Any] = [None, None]
    if trainer.accelerator.is_main_process:
        try:
            folder = Path(trainer.args.output_dir)
            outcome[0] = check_folder(folder, asked, trainer.identity)
            identity.write(folder, trainer.identity)
        except ACPOError as error:
            outcome[1] = str(error)
    broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise ACPOError(outcome[1])
    if outcome[0] is None:  # what an earlier run of the same trainer has left of a rollout
        trainer._step, trainer._buffered_inputs = 0, None
    return outcome[0]


def check_folder(folder: Path, asked: Any, run: dict[str, Any]) -> str | None:
    """The checkpoint a run goes on from, if any; raise where `begin` would.

    Of `run`, before there is a trainer, some of it will do.
    """
    found = to_resume_from(asked, folder)
    if found is not None:
        identity.refuse_other_run(Path(found), run)
    at_home = found is not None and Path(found).resolve().parent == folder.resolve()
    # A run all of whose checkpoints are damaged starts over, if they are its own.
    last = identity.read(folder)
    restarts = asked is True and last is not None and not identity.differences(last, run)
    left = [] if at_home or restarts else numbered(folder)
    identity.refuse_occupied(folder, left, run, goes_on=at_home)
    return found


WRITERS = ("inline_container", "PytorchStreamWriter")
"""Parts of what `torch.save` says, as a RuntimeError, where a file could not be written."""


@contextmanager
def saving(folder: Path, what: str) -> Iterator[None]:
    """What files written inside raise, in words: where, what was lost, and what is left.

    Libraries tell a full disk each in their own way, and torch without naming it.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError, ACPOError) as error:
        if isinstance(error, ACPOError) and not isinstance(error.__cause__, OSError):
            raise
        words = " ".join(str(error).split())
        if isinstance(error, RuntimeError) and not any(name in words for name in WRITERS):
            raise
        free = shutil.disk_usage(folder).free / 1e9
        there = newest(folder)
        left = "there is no earlier checkpoint: make room, and start again"
        if there:
            left = (
                f"{there.name}, the last whole checkpoint, is kept: make room, and "
                "resume_from_checkpoint=True (--resume_from_checkpoint true) goes on from it"
            )
        raise ACPOError(
            f"output_dir={str(folder)!r}: {what} could not be written, and {free:.3g} GB are free "
            f"on its disk; {left} ({type(error).__name__}: {words})"
        ) from error


class Staging:
    """Where a trainer's checkpoint is written before it gets its name."""

    folder: Path | None = None  # the staging folder while a checkpoint is being written
    unpushed: bool = False  # whether an upload waits for the checkpoint's final name
    _shown: bool = False

    @contextmanager
    def of(self, trainer: Any, final: Path) -> Iterator[None]:
        """Write inside; the checkpoint of the trainer's step is at `final` afterwards."""
        folder, name = final.parent, final.name
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
        is_best = trainer.watch.is_best(trainer.args, trainer.state)
        if is_best or (best is not None and Path(best).parent == staging):
            trainer.state.best_model_checkpoint = str(final)
            if trainer.args.should_save:
                trainer.state.save_to_json(str(staging / name / TRAINER_STATE_NAME))
        if writes:
            self._show(trainer, publish(staging / name, final))
            keep, step = trainer.state.best_model_checkpoint, trainer.state.global_step
            forget_old(folder, trainer.args.save_total_limit, step=step, keep=keep)
        accelerator.wait_for_everyone()

    def _show(self, trainer: Any, cost: Cost) -> None:
        """Log what the checksums took; the first time, say so."""
        metrics = trainer._metrics["train"]
        metrics["checkpoint/checksum_seconds"].append(cost.seconds)
        metrics["checkpoint/checksum_gb_per_second"].append(
            cost.bytes / 1e9 / max(cost.seconds, 1e-9)
        )
        if not self._shown:
            self._shown = True
            logger.warning(f"checksums of a checkpoint: {cost}")


def save_trainer(trainer: Any, folder: str) -> None:
    """Write what transformers does not know of a trainer, one file per process."""
    step, position = trainer._step, trainer.rollouts.fresh_prompts.position
    # A signal may have it saved between a step's backward pass and its end.
    if trainer.under_way[0] == trainer.state.global_step:
        _, step, position = trainer.under_way
    state = {
        "step": step,
        "rollout": trainer._buffered_inputs,
        "fresh_prompts": position,
        "measured": trainer.rollouts.measured,
        "budget": trainer.packed.settings.budget,
        "budget_under": _measured_under(trainer),
        "guard": trainer.guard.state(),
        "recorder": trainer.recorder and trainer.recorder.state(),
    }
    torch.save(state, _state_file(folder, trainer.accelerator.process_index))
    if trainer.args.should_save and trainer.args.sync_ref_model:
        policy = trainer.accelerator.unwrap_model(trainer.ref_model)
        torch.save(policy.state_dict(), Path(folder) / REFERENCE)
    if trainer.args.should_save:
        identity.write(Path(folder), trainer.identity)


def _measured_under(trainer: Any) -> list[Any]:
    """What decides how many tokens fit a pass: with all of it equal, packs are what they were."""
    args, device = trainer.args, trainer.accelerator.device
    cuda = device.type == "cuda"
    memory = torch.cuda.get_device_properties(device).total_memory if cuda else 0
    return [bool(args.gradient_checkpointing), args.use_vllm, args.logits_bytes, memory]


def load_trained_adapter(model: Any, folder: str) -> None:
    """Load the adapter beside which TRL put its reference, a copy of the initial one.

    PEFT writes the reference to a folder of its own and the trained one to the checkpoint itself,
    where transformers, having found the folder, does not look.
    """
    whole = (Path(folder) / "adapter_config.json").is_file()
    if whole and "ref" in getattr(model, "peft_config", {}):
        model.load_adapter(folder, "default", is_trainable=True)


def load_trainer(trainer: Any, folder: str) -> None:
    """Put back what `save_trainer` wrote."""
    passes = TrainerState.load_from_json(str(Path(folder) / TRAINER_STATE_NAME)).epoch or 0
    if passes >= 1 and isinstance(trainer.train_dataset, IterableDataset):
        logger.warning(
            "the training data is a stream that was read to its end before: it is read from its "
            "beginning, and the prompts are not those an unbroken run would have had; load it "
            "without streaming to resume exactly"
        )
    state = load_state(folder, trainer.accelerator.process_index)
    state = send_to_device(state, trainer.accelerator.device)
    trainer._step = state["step"]
    trainer._buffered_inputs = state["rollout"]
    if trainer.recorder and state["recorder"]:
        trainer.recorder.load(state["recorder"])
    trainer.rollouts.fresh_prompts.position = state["fresh_prompts"]
    if trainer.args.max_tokens_per_pack is None:
        same = state["budget_under"] == _measured_under(trainer)
        trainer.packed.settings.budget = state["budget"] if same else None
    trainer.guard.load(state["guard"])
    if trainer.args.sync_ref_model:
        kept = torch.load(Path(folder) / REFERENCE, map_location="cpu", weights_only=True)
        trainer.accelerator.unwrap_model(trainer.ref_model).load_state_dict(kept)
    trainer.rollouts.set_measured(state["measured"])
