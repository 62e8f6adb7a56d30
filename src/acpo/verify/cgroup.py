"""A control group (cgroup v2) around one sandbox, on machines that let this process make one."""

import contextlib
import functools
import os
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = {"memory", "pids"}
_EMPTY_SECONDS = 5.0


@functools.cache
def parent_group(root: Path = _ROOT, own: Path = Path("/proc/self/cgroup")) -> Path | None:
    """The group of this process where groups with limits can be made below it, else None."""
    try:
        lines = own.read_text().splitlines()
        path = next(line[3:] for line in lines if line.startswith("0::"))
        group = root / path.lstrip("/")
        control = group / "cgroup.subtree_control"
        if not set(control.read_text().split()) >= _CONTROLLERS:
            control.write_text(" ".join(f"+{name}" for name in sorted(_CONTROLLERS)))
        return group if os.access(group, os.W_OK) else None
    except (OSError, StopIteration):
        return None


class ControlGroup:
    """Limits that the kernel holds for all processes of a sandbox together, shared pages included.

    When they use too much memory, all of them are killed.
    """

    def __init__(self, parent: Path, memory_bytes: int, processes: int) -> None:
        self._path = parent / f"acpo-{os.getpid()}-{secrets.token_hex(8)}"
        self._path.mkdir()
        try:
            self._write("memory.max", memory_bytes)
            self._write("memory.oom.group", 1)
            self._write("pids.max", processes)
            with contextlib.suppress(OSError):  # a kernel without swap has no such file
                self._write("memory.swap.max", 0)
        except OSError:
            self.close()
            raise

    def add(self, pids: Iterable[int]) -> None:
        for pid in pids:
            self._write("cgroup.procs", pid)

    def close(self) -> None:
        """Kill what is left in the group, and remove it."""
        with contextlib.suppress(OSError):
            self._write("cgroup.kill", 1)
        patience = time.monotonic() + _EMPTY_SECONDS
        while True:
            try:
                self._path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                if time.monotonic() > patience:
                    return
                time.sleep(0.002)

    def _write(self, name: str, value: int) -> None:
        # No file is made here: where the kernel offers none, that is an error.
        descriptor = os.open(self._path / name, os.O_WRONLY)
        try:
            os.write(descriptor, str(value).encode())
        finally:
            os.close(descriptor)
