"""A small run that can be told to die by SIGKILL at a given place."""

import functools
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from acpo import ACPOTrainer
from acpo.engines.trl import checkpoint
from engines.tiny import build, odd_tokens


def die_on(call: int, function: Any) -> Any:
    """The same function; its n-th call ends the process as `kill -9` would."""
    calls = 0

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    return wrapped


def run(folder: Path, *, kill: str = "", resume: bool = False, record: bool = False) -> ACPOTrainer:
    """Twelve steps: four per rollout, eight per epoch, a checkpoint every three."""
    torch.set_num_threads(1)
    reward: Any = odd_tokens
    place, _, call = kill.partition(":")
    if place == "rollout":
        reward = die_on(int(call), reward)
    if place == "checkpoint":
        checkpoint.save_trainer = die_on(int(call), checkpoint.save_trainer)
    if place == "rename":
        checkpoint.flush_path = die_on(int(call), checkpoint.flush_path)
    trainer = build(
        folder,
        rewards=reward,
        max_steps=12,
        steps_per_generation=4,
        save_strategy="steps",
        save_steps=3,
        dynamic_sampling=True,
        max_resample_times=1,
        lr_scheduler_type="linear",
        record_rollouts=record,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def killed(folder: Path, place: str, *, record: bool = False) -> None:
    """The same run in a process of its own, which dies at a place.

    Processes are forked off one that has imported what they need, and has done nothing else.
    """
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    settings = {"kill": place, "record": record}
    process = processes.Process(target=run, args=(folder,), kwargs=settings)
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))):
        process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
