"""What a run logs and is told, line by line as it comes: `acpo view` shows it while it trains."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers.utils import logging

from acpo.jsonl import plain
from acpo.records import RUN_LOG

logger = logging.get_logger(__name__)


class RunLog:
    """The log of a run in its output folder; training goes on where it cannot be written."""

    def __init__(self) -> None:
        self._file: Path | None = None

    def begin(self, args: Any, rows: Iterable[dict[str, Any]]) -> None:
        """Start the file anew: with where else the run reports to, and what it logged so far."""
        self._file = Path(args.output_dir) / RUN_LOG
        self._write("w", [{"reports": reports(args)}, *rows])

    def add(self, row: dict[str, Any]) -> None:
        if self._file is not None:
            self._write("a", [row])

    def _write(self, mode: str, rows: Iterable[dict[str, Any]]) -> None:
        assert self._file is not None
        known = ({name: plain(value) for name, value in row.items()} for row in rows)
        text = "".join(json.dumps(row, default=str) + "\n" for row in known)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open(mode) as file:
                file.write(text)
        except OSError as error:
            logger.warning(f"{self._file} cannot be written ({error.strerror}): no live page")
            self._file = None


def reports(args: Any) -> dict[str, str]:
    """By dashboard of `report_to`, its address, or the command that opens it."""
    found = {}
    for name in args.report_to or ():
        if name == "tensorboard":
            found[name] = f"tensorboard --logdir {args.output_dir}"
        elif name == "trackio":
            space = getattr(args, "trackio_space_id", None)
            project = f"trackio show --project {getattr(args, 'project', None)}"
            found[name] = f"https://huggingface.co/spaces/{space}" if space else project
        elif name == "wandb":
            run = getattr(sys.modules.get("wandb"), "run", None)
            found[name] = str(getattr(run, "url", None) or "https://wandb.ai/home")
        else:
            found[name] = ""
    return found
