"""Resident memory of a process and all its descendants, from /proc."""

import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def descendants(pid: int) -> list[int]:
    """`pid` and every process below it; empty where the kernel does not list children."""
    found = [pid]
    for parent in found:
        try:
            tasks = list(Path(f"/proc/{parent}/task").iterdir())
            for task in tasks:
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue
    return found


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
