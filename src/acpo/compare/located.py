"""YAML whose every value knows the line it stands on, so that a refusal can name it."""

from pathlib import Path
from typing import Any, NoReturn

import yaml

from acpo.errors import ACPOError

Path_ = tuple[str | int, ...]


class Located:
    """A parsed YAML file.

    Attributes:
        path: of the file.
        values: what it holds.
    """

    def __init__(self, path: str | Path, *, what: str = "study") -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise ACPOError(f"{what}={str(path)!r} is not a file; see recipes/studies/ for some")
        try:
            text = self.path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ACPOError(f"{path}:1: not YAML in UTF-8: {error}") from error
        self._lines: dict[Path_, int] = {}
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            self.values: Any = yaml.safe_load(text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f":{mark.line + 1}" if mark else ""
            raise ACPOError(f"{path}{line}: not YAML: {error}") from error
        if not isinstance(self.values, dict) or node is None:
            raise ACPOError(f"{path}:1: a {what} is a mapping of options to values")
        self._walk(node, (), ())

    def _walk(self, node: Any, place: Path_, around: tuple[Any, ...]) -> None:
        self._lines[place] = node.start_mark.line + 1
        if node in around:
            self.refuse(place, "an alias refers to what it is part of; write it out")
        around = (*around, node)
        if isinstance(node, yaml.SequenceNode):
            for index, child in enumerate(node.value):
                self._walk(child, (*place, index), around)
        elif isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, child in node.value:
                name = str(key.value)
                self._lines[(*place, name)] = key.start_mark.line + 1
                if name in seen:
                    self.refuse((*place, name), f"{name!r} is given twice; keep one")
                seen.add(name)
                line = self._lines[(*place, name)]
                self._walk(child, (*place, name), around)
                self._lines[(*place, name)] = line  # of the key, not where its block begins

    def line(self, place: Path_) -> int:
        """The line of a value, or of the nearest thing around it."""
        while place not in self._lines:
            place = place[:-1]
        return self._lines[place]

    def refuse(self, place: Path_, why: str) -> NoReturn:
        """Raise an error that names the file and the line of a value."""
        raise ACPOError(f"{self.path}:{self.line(place)}: {why}")
