"""A process and what is below it, from /proc."""

import os
import signal
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def children(pid: int) -> list[int]:
    """The processes that `pid` started; empty where the kernel does not list them."""
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    except OSError:
        pass
    return found


def descendants(pid: int) -> list[int]:
    """`pid` and every process below it."""
    found = [pid]
    for parent in found:
        found += children(parent)
    return found


def kill_children(pid: int) -> bool:
    """Kill the children of `pid`, a child of ours. Whether there were any."""
    killed = False
    for child in children(pid):
        try:
            handle = os.pidfd_open(child)
        except OSError:
            continue
        try:
            # Still there after the handle was taken, so the handle is that child's.
            if child in children(pid):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                killed = True
        except ProcessLookupError:
            killed = True
        finally:
            os.close(handle)
    return killed


def tree_memory(pid: int) -> int:
    """Bytes that only the tree below `pid` holds: resident memory without shared file pages."""
    total = 0
    for process in descendants(pid):
        try:
            resident, shared = Path(f"/proc/{process}/statm").read_text().split()[1:3]
        except (OSError, ValueError):
            continue
        total += int(resident) - int(shared)
    return total * _PAGE
