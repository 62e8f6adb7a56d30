"""The file of samples: appended to as they arrive, continued after any kind of end.

The first line holds the settings. Every other line is a sample, a verdict on an earlier sample, or
both in one. When a run is complete the file is rewritten with one line per sample, in the order of
the questions; until then it is in the order of arrival.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any

from acpo.errors import ACPOError, reason
from acpo.jsonl import json_line, json_value
from acpo.linefile import Closing, LineFile
from acpo.verify.verdict import Outcome

FORMAT = 1
Key = tuple[str, int]
_ANSWERER = ("model", "revision", "base_url", "served")
"""Settings that say who answered."""
_KINDS: dict[str, type | UnionType] = {
    **dict.fromkeys(("prompt", "completion", "finish", "failed", "fingerprint"), str),
    **{"answer": str | None, "tokens": int | None, "ids": list},
}


class SampleFile(Closing):
    """The samples of one benchmark, on disk and in memory.

    Args:
        path: The file. A half-written last line is cut off.
        settings: What the samples depend on. A file that has one must have been made with the
            same; one without begins anew.

    Raises:
        ACPOError: The settings differ (the key is named), another process writes to the file,
            or a line in the middle of it is not JSON.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.settings = json.loads(json.dumps(settings))
        self._lines = LineFile(path)
        self.samples = self._lines.resume(self._header(), self._take)

    def append(self, key: Key, fields: dict[str, Any]) -> None:
        """Keep a new sample, or the verdict on one that is here: on disk before this returns."""
        self._lines.append(_line(key, fields))
        self.samples.setdefault(key, {}).update(fields)

    def undecided(self, key: Key) -> bool:
        """Whether the sample still needs a verdict: it has none, or the machine failed."""
        return self.samples[key].get("verdict") in (None, Outcome.INFRA_ERROR)

    def compact(self, order: Sequence[str]) -> None:
        """Rewrite the file with one line per sample, questions in `order`, in one atomic step."""
        rank = {question: number for number, question in enumerate(order)}
        keys = sorted(self.samples, key=lambda key: (rank.get(key[0], len(rank)), key))
        lines = [self._header(), *(_line(key, self.samples[key]) for key in keys)]
        self._lines.replace(b"".join(lines))

    def close(self) -> None:
        self._lines.close()

    def _header(self) -> bytes:
        return json_line({"format": FORMAT, "settings": self.settings})

    def _take(self, text: bytes) -> dict[Key, dict[str, Any]]:
        made_with, samples = _parse(self.path, text)
        if made_with != self.settings and not any("completion" in s for s in samples.values()):
            self._lines.replace(self._header())
            return {}
        _require_equal(self.path, made_with, self.settings)
        return samples


def read_samples(path: Path) -> tuple[dict[str, Any], dict[Key, dict[str, Any]]]:
    """The settings and the samples of a file that is left as it is."""
    try:
        return _parse(path, path.read_bytes())
    except OSError as error:
        raise ACPOError(f"{path}: {reason(error)}") from error


def read_settings(path: Path) -> dict[str, Any]:
    """The settings of a file that is left as it is, without its samples."""
    try:
        with path.open("rb") as file:
            return _parse(path, file.readline())[0]
    except OSError as error:
        raise ACPOError(f"{path}: {reason(error)}") from error


def require_one_model(folder: Path, settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a folder whose benchmarks were answered by different models: it has one average."""
    if differs := first_difference(settings, _ANSWERER):
        first, run, name = differs
        raise ACPOError(
            f"{folder}: {first} has {name}={settings[first].get(name)!r}, {run} has "
            f"{name}={settings[run].get(name)!r}, and a folder has one model and one average: keep "
            "each model in a folder of its own (--output)"
        )


def first_difference(
    settings: Mapping[str, Mapping[str, Any]], names: Sequence[str]
) -> tuple[str, str, str] | None:
    """The first benchmark, another, and a setting of these names that they do not share."""
    for another in settings:
        first = next(iter(settings))
        for name in names:
            if settings[first].get(name) != settings[another].get(name):
                return first, another, name
    return None


def _parse(path: Path, text: bytes) -> tuple[dict[str, Any], dict[Key, dict[str, Any]]]:
    """Settings and samples of the whole lines: what follows the last is half of one."""
    header: Any = None
    samples: dict[Key, dict[str, Any]] = {}
    for number, line in enumerate(text.split(b"\n")[:-1], start=1):
        try:
            row = json_value(line)
            if number == 1:
                header = row
                continue
            key = (row.pop("question"), row.pop("sample"))
            if not (type(key[0]) is str and type(key[1]) is int):
                raise ValueError("question must be text and sample a number")
            for name in row.keys() & _KINDS.keys():
                if not isinstance(row[name], _KINDS[name]):
                    raise ValueError(f"{name}={row[name]!r:.60}")
            if not 0 <= (row.get("tokens") or 0) < 2**31:
                raise ValueError(f"tokens={row['tokens']!r:.60}")
            if "verdict" in row:
                Outcome(row["verdict"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ACPOError(
                f"{path}:{number}: not a line of samples as `acpo eval` writes them "
                f"({reason(error)}): remove it or use another --output"
            ) from error
        samples.setdefault(key, {}).update(row)
    known = isinstance(header, dict) and header.get("format") == FORMAT
    if not known or not isinstance(header.get("settings"), dict):
        raise ACPOError(
            f"{path}: not a file of samples of format {FORMAT}: remove it or use another --output"
        )
    return header["settings"], samples


def _line(key: Key, fields: dict[str, Any]) -> bytes:
    return json_line({"question": key[0], "sample": key[1], **fields})


def _require_equal(path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            raise ACPOError(
                f"{path} was made with {name}={old.get(name)!r}, this run has "
                f"{name}={new.get(name)!r}: samples of both do not mix. Restore {name}, or use "
                "another --output"
            )
