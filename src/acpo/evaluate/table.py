"""The paper's main table from folders of evaluations: methods x benchmarks x models."""

import csv
import html
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from acpo.errors import ACPOError
from acpo.evaluate import statistics
from acpo.evaluate.report import latex_text, tabular, title, told_lacking, told_undecided
from acpo.evaluate.statistics import QuestionCounts
from acpo.evaluate.summary import lacking, question_counts, read_run, undecided, unlike
from acpo.intervals import Estimate
from acpo.jsonl import read_if_json
from acpo.tasks import BENCHMARKS, PAPER
from acpo.texts import csv_cell, markdown_table

AVERAGE = "average"
NOTE = (
    "mean@k in percent, 95% intervals clustered by question. Bold: better than every other method "
    "of that model, question by question."
)


class Cell(NamedTuple):
    """One score, and whether it is told apart from every other of its model and benchmark."""

    score: Estimate | None
    best: bool = False


@dataclass(frozen=True)
class Line:
    """One evaluation: what was trained from and with; per benchmark, what became of each question,
    how it was asked, and what is said of samples left out. Lines of one model are compared."""

    model: str
    method: str
    counts: dict[str, list[QuestionCounts]]
    settings: dict[str, dict[str, Any]]
    left_out: dict[str, str]

    def score(self, benchmark: str) -> Estimate | None:
        counts = self.counts.get(benchmark)
        return statistics.mean_accuracy(counts) if counts else None

    def average(self, benchmarks: Sequence[str]) -> Estimate | None:
        """Over all of them, or none."""
        scores = [self.score(name) for name in benchmarks]
        known = [score for score in scores if score is not None]
        return statistics.average(known) if known and len(known) == len(scores) else None


@dataclass(frozen=True)
class ResultTable:
    """Lines, and the benchmarks that are its columns."""

    lines: tuple[Line, ...]
    benchmarks: tuple[str, ...]

    def cells(self, line: Line) -> list[Cell]:
        """A line's scores, its average last."""
        cells = [Cell(line.score(name), self._is_best(line, name)) for name in self.benchmarks]
        return [*cells, Cell(line.average(self.benchmarks))]

    def _is_best(self, line: Line, benchmark: str) -> bool:
        """Whether the paired difference to every rival has an interval above 0."""
        rivals = [one for one in self.lines if one.model == line.model and one is not line]
        found = [
            statistics.compare(line.counts.get(benchmark, []), rival.counts[benchmark])
            for rival in rivals
            if rival.counts.get(benchmark)
        ]
        return bool(found) and all(one is not None and one.difference.low > 0 for one in found)

    def render(self, form: str) -> str:
        """As `markdown`, `latex` or `csv`."""
        return {"markdown": self._markdown, "latex": self._latex, "csv": self._csv}[form]()

    def _markdown(self) -> str:
        heads = ["model", "method", *map(title, self.benchmarks), AVERAGE]
        rows = [
            [_name(line.model), _name(line.method), *map(_markdown_cell, self.cells(line))]
            for line in self.lines
        ]
        return "\n".join([*markdown_table(heads, rows), "", NOTE, *self.warnings(), ""])

    def warnings(self) -> list[str]:
        """Where samples are left out, and where lines of one model were not asked alike."""
        found = [
            f"{title(name)} of {' '.join(filter(None, (line.model, line.method)))}: {said}."
            for line in self.lines
            for name, said in line.left_out.items()
        ]
        for model in dict.fromkeys(line.model for line in self.lines):
            lines = [line for line in self.lines if line.model == model]
            for name in self.benchmarks:
                own = [line for line in lines if line.counts.get(name)]
                asked = [
                    {**line.settings[name], "questions": len(line.counts[name])} for line in own
                ]
                if asked and (differing := unlike(asked)):
                    where = " of ".join(filter(None, (title(name), model)))
                    found.append(f"{where}: the runs differ in {', '.join(differing)}.")
        return found

    def _csv(self) -> str:
        text = io.StringIO()
        write = csv.writer(text, lineterminator="\n").writerow
        write(["model", "method", "benchmark", "mean", "low", "high", "best"])
        for line in self.lines:
            for name, cell in zip((*self.benchmarks, AVERAGE), self.cells(line), strict=True):
                score = cell.score or ("", "", "")
                named = map(csv_cell, (line.model, line.method, name))
                write([*named, *score, int(cell.best)])
        return text.getvalue()

    def _latex(self) -> str:
        rows: list[str] = []
        model = None
        for line in self.lines:
            rows += [r"\midrule"] if rows and line.model != model else []
            cells = " & ".join(_latex_cell(cell) for cell in self.cells(line))
            name = latex_text(line.model) if line.model != model else ""
            rows.append(rf"{name} & {latex_text(line.method)} & {cells} \\")
            model = line.model
        heads = ["Model", "Method", *map(title, self.benchmarks), "Average"]
        return tabular("ll", heads, rows)


def read_table(runs: Sequence[str], *, failed: str = "exclude") -> ResultTable:
    """The table of evaluations.

    Args:
        runs: `DIR`, `METHOD=DIR` or `MODEL/METHOD=DIR`. A folder alone is named after what
            `acpo train` wrote beside its model, or else after itself.
        failed: what a sample is that could not be drawn: `exclude`, or `wrong`.
    """
    lines = [_line(run, failed) for run in runs]
    seen: dict[tuple[str, str], str] = {}
    for run, line in zip(runs, lines, strict=True):
        if other := seen.get((line.model, line.method)):
            raise ACPOError(
                f"{other} and {run} are both {line.model!r}, {line.method!r}: name them as "
                "MODEL/METHOD=DIR"
            )
        seen[line.model, line.method] = run
    data: dict[str, set[str]] = defaultdict(set)
    for line in lines:
        for name, settings in line.settings.items():
            data[name].add(str(settings.get("data")))
    for name, sums in data.items():
        if len(sums) > 1:
            raise ACPOError(f"{name}: the runs were asked different questions: they do not compare")
    known = [name for name in (*PAPER, *BENCHMARKS) if name in data]
    models = list(dict.fromkeys(line.model for line in lines))
    ordered = sorted(lines, key=lambda line: models.index(line.model))
    return ResultTable(tuple(ordered), tuple(dict.fromkeys([*known, *data])))


def _line(run: str, failed: str) -> Line:
    label, folder = _split(run)
    found = read_run(Path(folder))
    settings = next(iter(found.values()))[0]
    model, method = _origin(str(settings.get("model", "")), Path(folder).name)
    if label:
        before, _, method = label.rpartition("/")
        model = before or model
    counts = {name: question_counts(samples, failed=failed) for name, (_, samples) in found.items()}
    left_out = {}
    for name, (_, samples) in found.items():
        judged = sum("verdict" in one for one in samples.values())
        said = [told_undecided(undecided(samples), judged), told_lacking(lacking(samples))]
        if text := "; ".join(filter(None, said)):
            left_out[name] = text
    asked = {name: entry for name, (entry, _) in found.items()}
    return Line(model, method, counts, asked, left_out)


def _split(run: str) -> tuple[str, str]:
    """Label and folder; folders may have a `=` in their names."""
    places = [place for place, char in enumerate(run) if char == "="]
    splits = [("", run), *((run[:place], run[place + 1 :]) for place in places)]
    return next((split for split in splits if Path(split[1]).is_dir()), splits[-1])


def _origin(model: str, name: str) -> tuple[str, str]:
    """What a model was trained from and with, where `acpo train` wrote it down."""
    report = read_if_json(Path(model) / "report.json") or {}
    if report.keys() >= {"model", "method"}:
        return str(report["model"]), str(report["method"])
    return "", name


def _name(text: str) -> str:
    """What a checkpoint calls itself, without markup."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", r"\|")


def _markdown_cell(cell: Cell) -> str:
    if cell.score is None:
        return "-"
    value, low, high = (100 * part for part in cell.score)
    shown = f"**{value:.1f}**" if cell.best else f"{value:.1f}"
    return f"{shown} [{low:.1f}, {high:.1f}]"


def _latex_cell(cell: Cell) -> str:
    if cell.score is None:
        return "--"
    value, low, high = (100 * part for part in cell.score)
    shown = rf"\mathbf{{{value:.1f}}}" if cell.best else f"{value:.1f}"
    return rf"${shown}$ {{\scriptsize $[{low:.1f}, {high:.1f}]$}}"
