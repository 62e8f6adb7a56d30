"""The processes in which a grader of the user's meets model output. Run as a child.

As with math (`acpo.verify.mathworker`), one server finds the grader once and forks workers. A
worker that has been forked may read, compute and answer; it may not start programs, change files or
open connections, since graders are known to `eval` what they are given.
"""

import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from acpo.errors import ACPOError
from acpo.tasks.confine import confine
from acpo.tasks.grading import as_verdict
from acpo.tasks.registry import blame, get_task
from acpo.verify.mathworker import serve_spawns


def main(control_fd: int, memory_bytes: int, reference: str, folder: str) -> None:
    """Find the grader, say so, then serve."""
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    os.chdir(folder)
    task = get_task(reference)
    assert callable(task.grader)
    grade = task.grader
    home = Path(getattr(getattr(grade, "__code__", None), "co_filename", reference))
    confined: list[bool] = []

    def judge(job: dict[str, Any]) -> dict[str, Any]:
        if not confined:
            confined.append(confine())
        try:
            verdict = as_verdict(grade(job["completion"], job["row"]))
        except (MemoryError, RecursionError):
            raise  # the completion's doing: this worker ends, and the verdict is `limit`
        except ACPOError as error:
            return {"error": f"task={reference!r}: {error}"}
        except Exception as error:
            return {"error": f"task={reference!r}: its grader raised at {blame(error, home)}"}
        return {"outcome": str(verdict.outcome), "detail": verdict.detail}

    control = socket.socket(fileno=control_fd)
    control.sendall(b"ready\n")
    serve_spawns(control, memory_bytes, judge)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
