"""JSON nested deeper than Python reads is damaged like any other: it ends no reader."""

import pytest

from acpo.checkpoints import adapter_base
from acpo.engines.trl import checkpoint, identity
from acpo.engines.trl.config import _mapping
from acpo.errors import ACPOError
from acpo.evaluate.samples import read_samples
from acpo.evaluate.table import _origin
from acpo.tasks.sources import read_rows
from acpo.train.report import REPORT, Report
from acpo.verify.batch import Verdicts

NESTED = "[" * 100_000 + "\n"


@pytest.mark.parametrize(
    ("name", "read"),
    {
        "samples.jsonl": read_samples,
        "rows.json": lambda file: read_rows(str(file)),
        "verdicts.jsonl": lambda file: Verdicts([{"a": 1}], [("1", "1")], {}, file),
        "adapter_config.json": lambda file: adapter_base(str(file.parent)),
        "option": lambda file: _mapping(file.read_text()),
    }.items(),
)
def test_what_a_person_gave_is_refused(tmp_path, name, read):
    (tmp_path / name).write_text(NESTED)
    with pytest.raises(ACPOError):
        read(tmp_path / name)


def test_what_a_run_left_says_nothing(tmp_path):
    for name in (identity.RUN, REPORT, checkpoint.MANIFEST, "report.json"):
        (tmp_path / name).write_text(NESTED)
    assert identity.read(tmp_path) is None
    assert Report.read(tmp_path) is None
    assert _origin(str(tmp_path), "a name") == ("", "a name")
    assert "not readable" in checkpoint.problem(tmp_path)
