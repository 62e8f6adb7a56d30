"""The processes in which a grader of the user's meets model output. Run as a child.

As with math (`acpo.verify.mathworker`), one server finds the grader once and forks workers. A
worker that has been forked may read, compute and answer; it may not start programs, change files or
open connections, since graders are known to `eval` what they are given.
"""

import os
import sys
from typing import Any

from acpo.errors import ACPOError
from acpo.tasks.blame import blame
from acpo.tasks.confine import confine
from acpo.tasks.grading import as_verdict
from acpo.tasks.registry import get_task
from acpo.verify.mathworker import prepare_server, serve_spawns


def main(control_fd: int, memory_bytes: int, reference: str, folder: str) -> None:
    """Find the grader, then serve."""
    prepare_server()
    os.chdir(folder)
    task = get_task(reference)
    assert callable(task.grader)
    grade = task.grader
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
            return {"error": f"task={reference!r}: its grader raised at {blame(error, grade)}"}
        return {"outcome": str(verdict.outcome), "detail": verdict.detail}

    serve_spawns(control_fd, memory_bytes, judge)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
