"""What an analysis yields, the files it becomes, and all of them in one HTML page."""

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from acpo import __version__
from acpo.diagnose.figures import rendered
from acpo.diagnose.outliers import Outlier
from acpo.errors import writing
from acpo.htmlpage import anchor, html_page
from acpo.linefile import write_whole
from acpo.texts import csv_cell, markdown_table, one_line

Row = Mapping[str, Any]
SPECIAL = r"[\\`*_\[\]<>|#$&~]"
"""Characters that Markdown takes for more than themselves."""


@dataclass(frozen=True)
class Table:
    """A small table of the summary."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]  # cells, as they are printed


@dataclass(frozen=True)
class Finding:
    """One analysis, done."""

    name: str  # of its files
    title: str
    source: str  # what was looked at
    reading: str  # what the figure shows, and how to read it; Markdown
    facts: Sequence[str]  # the outcome in numbers, a sentence each
    rows: Sequence[Row]  # the CSV: what the figure is drawn from
    figure: Figure
    tables: Sequence[Table] = ()
    extra: Mapping[str, Sequence[Row]] = field(default_factory=dict)  # CSV files, by suffix
    headline: str = ""  # the one fact to begin with; the first unless given

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        return self.headline or next(iter(self.facts), "")

    @cached_property
    def png(self) -> bytes:
        return rendered(self.figure, "png")

    def write(self, folder: Path, *, command: str = "") -> list[Path]:
        """Write NAME.csv, NAME.png, NAME.pdf and NAME.md, and one CSV for each of `extra`."""
        paths = [folder / f"{self.name}.{kind}" for kind in ("csv", "png", "pdf", "md")]
        with writing(f"--output {folder}", other="folder"):
            folder.mkdir(parents=True, exist_ok=True)
        write_whole(paths[0], csv_text(self.rows))
        write_whole(paths[1], self.png)
        write_whole(paths[2], rendered(self.figure, "pdf"))
        write_whole(paths[3], self.markdown(command))
        for suffix, rows in self.extra.items():
            paths.append(folder / f"{self.name}-{suffix}.csv")
            write_whole(paths[-1], csv_text(rows))
        return paths

    def markdown(self, command: str = "") -> str:
        """The summary."""
        lines = [f"# {self.title}", "", escape(self.source), "", f"![]({self.name}.png)", ""]
        lines += self.told()
        if command:
            lines += ["Made by", "", f"    {one_line(command)}", ""]
        return "\n".join(lines)

    def told(self) -> list[str]:
        """What the summary says of the figure, in lines of Markdown."""
        lines = [self.reading, "", *(f"- {escape(fact)}" for fact in self.facts), ""]
        for table in self.tables:
            lines += _table_lines(table.title, table.head, [map(escape, r) for r in table.rows])
        return lines


def _table_lines(title: str, head: Sequence[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A table whose cells are Markdown."""
    return [f"**{title}**", "", *markdown_table([*map(escape, head)], rows), ""]


def rows_of(columns: Mapping[str, Iterable[Any]]) -> list[dict[str, Any]]:
    """Columns of one length as rows."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def csv_text(rows: Sequence[Row]) -> str:
    """Rows as CSV under the union of their keys; numbers with nine digits."""
    stream = StringIO()
    keys = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(keys)
    for row in rows:
        writer.writerow([_cell(row.get(key, "")) for key in keys])
    return stream.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.9g}"
    return csv_cell(value) if isinstance(value, str) else one_line(str(value))


def escape(text: str) -> str:
    """Text from data as Markdown that says just that."""
    return re.sub(f"({SPECIAL})", r"\\\1", one_line(text))


def percent(share: float, digits: int = 2) -> str:
    """`12.34%`, or a dash for NaN."""
    return "-" if math.isnan(share) else f"{100 * share:.{digits}f}%"


def number(value: float) -> str:
    """Four significant digits, or a dash for NaN."""
    return "-" if math.isnan(value) else f"{value:.4g}"


def html(
    findings: Sequence[Finding],
    missing: Sequence[tuple[str, str]],
    outliers: Sequence[tuple[Outlier, str | None]] = (),
    *,
    source: str,
    command: str,
) -> str:
    """The report: findings in order, tokens that stand out with the address of each in a page, and
    the analyses that could not be made, with the reason."""
    lines = ["# Diagnosis", "", escape(source), ""]
    for one in findings:
        lines += [f"### [{one.title}](#{anchor(one.title)})", "", escape(one.sentence), ""]
        lines += [f"![{one.reading}]({one.name}.png)", ""]
    for one in findings:
        lines += [f"## {one.title}", "", escape(one.source), "", *one.told()]
    if outliers:
        head = ("what", "value", "token", "text", "completion", "step", "prompt")
        rows = [_outlier_cells(*one) for one in outliers]
        lines += ["## Tokens that stand out", "", *_table_lines("The largest of each", head, rows)]
    if missing:
        lines += ["## Not made", "", *(f"- `{name}`: {escape(why)}" for name, why in missing), ""]
    lines += ["## How this was made", "", f"    {one_line(command)}", "", f"acpo {__version__}"]
    images = {f"{one.name}.png": one.png for one in findings}
    return html_page("\n".join(lines), images, title="Diagnosis")


def _outlier_cells(one: Outlier, address: str | None) -> list[str]:
    place = str(one.token + 1)
    place = f"[{place}]({address})" if address else place
    texts = [escape(one_line(text, 40)) for text in (one.text, one.prompt)]
    numbers = [str(one.sample), str(one.step)]
    return [escape(one.what), number(one.value), place, texts[0], *numbers, texts[1]]
