"""A process and what is below it, from /proc."""

import contextlib
import os
import signal
from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes that `pid` started; empty where the kernel does not list them."""
    found = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    for thread in threads:
        with contextlib.suppress(OSError):  # one that has just ended
            text = Path(f"/proc/{pid}/task/{thread}/children").read_text()
            found += [int(child) for child in text.split()]
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
    """Bytes that the tree below `pid` holds, shared memory included, pages of files left out.

    A page that several processes share counts once (`Pss`); where the kernel keeps that from us,
    once for each.
    """
    return sum(_memory(process) for process in descendants(pid))


def _memory(pid: int) -> int:
    try:
        sizes = _kib(f"/proc/{pid}/smaps_rollup")
        return 1024 * (sizes["Pss"] - sizes["Pss_File"])
    except (OSError, KeyError):
        pass
    try:
        sizes = _kib(f"/proc/{pid}/status")
        return 1024 * (sizes["RssAnon"] + sizes["RssShmem"])
    except (OSError, KeyError):
        return 0


def _kib(path: str) -> dict[str, int]:
    """The lines `name: number kB` of a file of /proc."""
    pairs = (line.split() for line in Path(path).read_text().splitlines())
    return {pair[0].rstrip(":"): int(pair[1]) for pair in pairs if pair[2:] == ["kB"]}
