"""Two processes train like one."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from acpo.records import Trace
from engines import fsdp_worker, worker
from engines.fsdp_worker import CASES, HALF_CASES
from engines.tiny import relative
from engines.worker import RUNS

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What `worker.py` leaves when one process runs it and, meanwhile, two."""
    folder = tmp_path_factory.mktemp("processes")
    port = str(29500 + os.getpid() % 1000)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE.parent), *sys.path])),
        "OMP_NUM_THREADS": "1",
    }
    with (folder / "log").open("w") as log:
        two = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), str(folder), port],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        worker.main(folder)
        fsdp_worker.main(folder)
        status = two.wait(timeout=900)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(two.pid, signal.SIGKILL)
    assert status == 0, (folder / "log").read_text()[-8000:]
    return folder


@pytest.mark.parametrize("method", RUNS)
def test_two_processes_equal_one(runs, method):
    one, two = (torch.load(runs / f"{method}_{n}.pt") for n in (1, 2))
    for a, b in zip(two["gradients"], one["gradients"], strict=True):
        assert b.norm() > 1e-5
        assert relative(a, b) < 1e-4
    for name, value in one["log"].items():
        assert two["log"][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_evaluation_of_groups_that_span_processes(runs):
    """Each process holds half of a group, and GTPO compares all of it."""
    for processes in (1, 2):
        logged = torch.load(runs / f"gtpo_{processes}.pt")["evaluations"]
        losses = [loss for loss in logged if loss is not None]
        assert len(losses) == 2 and all(abs(loss) > 1e-6 for loss in losses)


def test_two_processes_record_what_one_does(runs):
    one, two = (Trace.open(runs / f"sapo_{n}" / "trace") for n in (1, 2))
    assert one.parts == two.parts and [part["step"] for part in one.parts] == [0, 1]
    exact = ("prompt_id", "sample", "prompt", "completion", "answer", "reward", "truncated")
    assert one.rollouts.select(exact).equals(two.rollouts.select(exact))
    a, b = (trace.tokens("token_id", "logp", "credit", "advantage") for trace in (one, two))
    for name in a:
        np.testing.assert_allclose(b[name], a[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_two_processes_resume_to_identical_weights(runs):
    whole, resumed = torch.load(runs / "resumed_2.pt")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert {p.name for p in (runs / "resumed_2").iterdir() if p.is_dir()} == {
        "checkpoint-4",
        "checkpoint-6",
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_fsdp2_on_two_processes_equals_one(runs, case):
    one, two = (torch.load(runs / f"{'_'.join(map(str, case))}_{n}.pt") for n in (1, 2))
    assert one.norm() > 1e-5
    assert relative(two, one) < 1e-5


def test_packing_is_tried_on_weights_that_fsdp2_sharded_under_adapters(runs):
    """Through the root: the model inside the adapters alone would be called with its shards."""
    first, second = (torch.load(runs / f"adapters_{rank}.pt") for rank in range(2))
    assert first == second > 1e-5


@pytest.mark.parametrize("case", HALF_CASES, ids=lambda case: "-".join(map(str, case)))
def test_bfloat16_under_accelerates_fsdp2_equals_one_process(runs, case):
    """FSDP2 casts what it can open to bfloat16; the loss's columns must come through in float32."""
    one, ddp, fsdp = (
        torch.load(runs / f"{'_'.join(map(str, case))}_{wrapper}.pt")
        for wrapper in ("none", "ddp", "fsdp2")
    )
    for run in (one, ddp, fsdp):
        assert run["dtypes"] == run["statistics"] == {"torch.float32"}
        assert run["drift"] == 0.0 and run["tokens"] > 10
    # Processes round their part of a sum to bfloat16 before they add it.
    tolerance = 1.2e-2
    assert one["gradient"].norm() > 1e-5
    for run in (ddp, fsdp):
        assert relative(run["gradient"], one["gradient"]) < tolerance
