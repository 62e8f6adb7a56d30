"""YAML that people write: files of options, each value with its line, and single values."""

from pathlib import Path
from typing import Any, NoReturn

import yaml

from acpo.errors import ACPOError
from acpo.jsonl import text_lines

Place = tuple[str | int, ...]
MOST_VALUES = 100_000


class _Loader(yaml.SafeLoader):
    """Reads what JSON, which results are, holds too, and no key of a mapping twice."""

    name: Any  # where the text stands

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """The mapping as written, before `<<` merges others into it."""
        node = super().compose_mapping_node(anchor)
        keys: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in keys:
                line = key.start_mark.line + 1
                raise ACPOError(f"{self.name}:{line}: {key.value!r} is given twice; keep one")
            keys.add(str(key.value))
        return node


def _refuse_kind(loader: _Loader, node: yaml.Node) -> NoReturn:
    kind = node.tag.rpartition(":")[2]
    why = f"a {kind} cannot be an option's value; put text in quotes"
    raise yaml.constructor.ConstructorError(None, None, why, node.start_mark)


def _refuse_other_bases(loader: _Loader, node: yaml.ScalarNode) -> Any:
    """010 is 8 in YAML 1.1, and 1:30 is 90."""
    digits = node.value.lstrip("+-")
    if ":" in digits or (len(digits) > 1 and digits[0] == "0" and digits[1] not in ".eE"):
        why = f"{node.value} is not the number it looks like; write it in decimals, or in quotes"
        raise yaml.constructor.ConstructorError(None, None, why, node.start_mark)
    return getattr(loader, f"construct_yaml_{node.tag.rpartition(':')[2]}")(node)


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _refuse_other_bases)
for _kind in ("timestamp", "binary", "set", "omap", "pairs"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _refuse_kind)


class YamlFile:
    """A parsed YAML file, which knows the line of each of its `values`."""

    def __init__(self, path: str | Path, *, what: str, others: str) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise ACPOError(
                f"{what}={str(path)!r} is not a file; `acpo init` writes some to {others}"
            )
        node, self.values = _parse("".join(text_lines(self.path)), str(path))
        if not isinstance(self.values, dict):
            raise ACPOError(f"{path}:1: a {what} is a mapping of options to values")
        self._lines: dict[Place, int] = {}
        self._walk(node, (), ())

    def _walk(self, node: Any, place: Place, around: tuple[Any, ...]) -> None:
        self._lines[place] = node.start_mark.line + 1
        if node in around:
            self.refuse(place, "an alias refers to what it is part of; write it out")
        if len(self._lines) > MOST_VALUES:
            self.refuse(place, f"aliases make more than {MOST_VALUES:,} values; write them out")
        around = (*around, node)
        if isinstance(node, yaml.SequenceNode):
            for index, child in enumerate(node.value):
                self._walk(child, (*place, index), around)
        elif isinstance(node, yaml.MappingNode):
            for key, child in node.value:  # what `<<` merges stands first, and is replaced
                own, line = (*place, str(key.value)), key.start_mark.line + 1
                self._walk(child, own, around)
                self._lines[own] = line  # of the key, not where its block begins

    def line(self, place: Place) -> int:
        """The line of a value, or of the nearest thing around it."""
        while place not in self._lines:
            place = place[:-1]
        return self._lines[place]

    def refuse(self, place: Place, why: str) -> NoReturn:
        """Raise an error that names the file and the line of a value."""
        raise ACPOError(f"{self.path}:{self.line(place)}: {why}")


def yaml_value(text: str, where: str) -> Any:
    """What a text is in YAML."""
    return _parse(text, where)[1]


def _parse(text: str, where: str) -> tuple[Any, Any]:
    """(nodes, value) of a text; `where` it stands begins every refusal."""
    try:
        loader = _Loader(text)
        loader.name = where
        node = loader.get_single_node()
        return node, None if node is None else loader.construct_document(node)
    except ACPOError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        why = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ACPOError(f"{where}{line}: not plain YAML: {why}") from error
