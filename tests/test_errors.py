"""What is said of errors that others raise."""

import pytest

from acpo.errors import reason


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("one\ntwo"), "one"),
        (ValueError("one of:\n  two\nthree"), "one of: two"),
        (ValueError(" \n"), "ValueError(' \\n')"),
        (KeyError("format"), "'format' is missing"),
        (
            FileNotFoundError(2, "No such file or directory", "rows.jsonl"),
            "No such file or directory",
        ),
    ],
)
def test_the_first_line_of_an_error_is_its_reason(error, said):
    assert reason(error) == said
