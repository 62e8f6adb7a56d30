"""Whose line it was: what code of the user's raises, in one line that names its file."""

import importlib
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acpo.errors import ACPOError, line_of
from acpo.tasks.task import Task


@contextmanager
def told(task: Task, what: str, function: Callable[..., Any]) -> Iterator[None]:
    """What a function of a task raises, as an `ACPOError` that names the task and the line."""
    where = f"task={task.reference or task.name!r}"
    try:
        yield
    except ACPOError as error:
        raise ACPOError(f"{where}: {error}") from error
    except Exception as error:
        raise ACPOError(f"{where}: its {what} raised at {blame(error, function)}") from error


def blame(error: BaseException, source: Path | Callable[..., Any]) -> str:
    """What was raised, at the last line of the user's own file."""
    return f"{line_of(error, source)}: {type(error).__name__}: {error}"


def importing_file(error: BaseException) -> Path:
    """The file whose import by name failed: the first that the import ran, or could not read."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)[1:]]
    ran = [
        file for file in files if not (file.startswith("<frozen ") or file == importlib.__file__)
    ]
    unread = error.filename if isinstance(error, SyntaxError) and error.filename else "?"
    return Path(ran[0] if ran else unread)
