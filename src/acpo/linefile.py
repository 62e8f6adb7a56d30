"""A file of lines with one writer at a time, which survives any end of that writer."""

import fcntl
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from acpo.errors import ACPOError, writing

Kept = TypeVar("Kept")


class Closing:
    """Is closed at the end of a `with`."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def lock(file: Any, path: Path, busy: Exception) -> None:
    """Keep others out of an open file until it is closed; raise `busy` while another does."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as reason:
        raise busy from reason
    except OSError as reason:
        raise ACPOError(
            f"{path} cannot be locked ({reason.strerror}): name one on a file system that can"
        ) from reason


class LineFile(Closing):
    """Appends whole lines: each is with the system when `append` returns.

    Args:
        path: The file; made, with its folder, if it is not there.
        sync: Whether a line has to be on disk, not only with the system.
    """

    def __init__(self, path: Path, *, sync: bool = False) -> None:
        self.path, self._sync = path, sync
        self._lock = threading.Lock()
        busy = ACPOError(f"{path}: another process writes to it: wait for it")
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what was written outlives this process.
            self._file: Any = open(path, "a+b", buffering=0)  # noqa: SIM115 (closed by `close`)
        try:
            if not path.is_file():
                raise ACPOError(f"{path} keeps no lines (a device or a pipe): name a file")
            lock(self._file, path, busy)
            if not os.path.samestat(os.fstat(self._file.fileno()), path.stat()):
                raise busy  # `replace` put another in its place: lines in this one would be lost
        except ACPOError:
            self._file.close()
            raise

    def resume(self, first: bytes, take: Callable[[bytes], Kept], *, own: bool = False) -> Kept:
        """What `take` makes of the whole lines that are there; of `first`, where there is none.

        What follows the last whole line is cut off once these are taken, since this might be
        anybody's file; one that `take` refuses is closed.

        Args:
            first: The line a new file begins with.
            take: Reads lines; it may `replace` them.
            own: Whether half a line that is no part of `first` may be overwritten.
        """
        file = self._file
        try:
            file.seek(0)
            text: bytes = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            if not whole and (own or first.startswith(text)):
                file.truncate(0)
                self.append(whole := first)
            kept = take(whole)
            if file is self._file:
                file.truncate(len(whole))
        except BaseException:
            self.close()
            raise
        return kept

    def append(self, lines: bytes) -> None:
        """Add whole lines: all of them, or none."""
        with self._lock, writing(self.path):
            size = os.fstat(self._file.fileno()).st_size
            try:
                self._write(self._file, lines)
            except OSError:
                self._file.truncate(size)  # the next line must not join half of this one
                raise

    def replace(self, lines: bytes) -> None:
        """Put these lines in the place of all others, in one step."""
        path, partial = _beside(self.path)
        with self._lock, writing(self.path):
            file: Any = open(partial, "a+b", buffering=0)  # noqa: SIM115 (closed by `close`)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)  # before others can see it
                self._write(file, lines)
                os.fsync(file.fileno())
                partial.replace(path)
            except BaseException:
                file.close()
                partial.unlink(missing_ok=True)
                raise
            flush_path(path.parent)
            self._file.close()
            self._file = file

    def _write(self, file: Any, lines: bytes) -> None:
        written = 0
        while written < len(lines):
            written += file.write(lines[written:])
        if self._sync:
            os.fsync(file.fileno())

    def close(self) -> None:
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()


def _beside(path: Path) -> tuple[Path, Path]:
    """The file that `path` may link to, and a name next to it that nobody has."""
    real = Path(os.path.realpath(path))
    return real, real.with_name(f".{real.name}.{secrets.token_hex(8)}")


def flush_path(path: Path) -> None:
    """Have the content of a file, or the names in a folder, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """The name to write a file under, so that others see all of it or what was there.

    Its folder is made. A device or a pipe is written to, and stays what it is.

    Raises:
        ACPOError: It cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            yield path
            return
        path, partial = _beside(path)
        try:
            yield partial
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def write_png(path: Path, figure: Any) -> None:
    """Write a figure of matplotlib as `whole_file` does."""
    with whole_file(path) as name:
        figure.savefig(name, format="png", dpi=150)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file as `whole_file` does."""
    with whole_file(path) as name:
        name.write_bytes(content if isinstance(content, bytes) else content.encode())
