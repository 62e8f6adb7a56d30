"""Rows of JSON Lines, and what is none."""

import json
import pickle

import pytest

from acpo.errors import ACPOError
from acpo.jsonl import as_written, json_object, json_value, read_if_json, read_jsonl


def test_rows_may_hold_separators_that_are_no_newline(tmp_path):
    (tmp_path / "f").write_text('{"a": "x\u2028y"}\n\n{"a": 2}', encoding="utf-8")
    assert read_jsonl(tmp_path / "f") == [{"a": "x\u2028y"}, {"a": 2}]


def test_a_byte_order_mark_is_no_part_of_a_row(tmp_path):
    (tmp_path / "f").write_text('\ufeff{"a": 1}\n', encoding="utf-8")
    assert read_jsonl(tmp_path / "f") == [{"a": 1}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", ":2: list, not a JSON object"),
        ("{", ":2: not JSON"),
        ("[" * 100_000, ":2: not JSON"),
    ],
    ids=["list", "cut", "deep"],
)
def test_what_is_no_row_is_named(tmp_path, line, message):
    (tmp_path / "f").write_text('{"a": 1}\n' + line + "\n")
    with pytest.raises(ACPOError, match=message):
        read_jsonl(tmp_path / "f")


@pytest.mark.parametrize(
    "number",
    [
        *("0.1234567890123456789", "9007199254740993.0", "1.2345678e-320", "1e-400", "-1e400"),
        *("1e-99999999999999999999", "9" * 5000, "-" + "9" * 5000),
    ],
    ids=lambda number: number[:24],
)
def test_no_digit_of_a_number_is_lost(tmp_path, number):
    (tmp_path / "f").write_text(f'{{"a": {number}}}\n')
    (row,) = read_jsonl(tmp_path / "f")
    assert str(row["a"]) == str(pickle.loads(pickle.dumps(row["a"]))) == number


def test_numbers_that_a_float_holds_are_plain_floats(tmp_path):
    (tmp_path / "f").write_text(
        '{"a": [0.1, 1e-8, 0.3333333333333333, -12.500, 1e300, 0.0, 0e-99999999999999999999]}'
    )
    assert {type(one) for one in read_jsonl(tmp_path / "f")[0]["a"]} == {float}


def test_nothing_to_read(tmp_path):
    (tmp_path / "f").write_text("\n")
    with pytest.raises(ACPOError, match="no rows"):
        read_jsonl(tmp_path / "f")
    (tmp_path / "f").write_bytes(b"\xff")
    with pytest.raises(ACPOError, match=r"none: No such file or directory$"):
        read_jsonl(tmp_path / "none")


def test_another_encoding_is_told_with_its_line(tmp_path):
    rows = b'{"a": 1}\n' * 5000
    for most in (None, 5001):
        (tmp_path / "f").write_bytes(rows + b'{"a": "\xe9"}\n')
        with pytest.raises(ACPOError, match=r":5001: not UTF-8: byte 0xe9 at column 8; save"):
            read_jsonl(tmp_path / "f", most)
    assert len(read_jsonl(tmp_path / "f", 5000)) == 5000


def test_where_a_line_breaks_off_is_told_within_it(tmp_path):
    (tmp_path / "f").write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(ACPOError, match=r":2: not JSON: Expecting value at column 6; repair"):
        read_jsonl(tmp_path / "f")


def test_a_name_that_is_given_twice_is_refused(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"answer": "1"}\n{"row": {"answer": "2", "answer": "3"}}\n')
    with pytest.raises(ACPOError, match=r"rows.jsonl:2: .*'answer' is given twice; keep one"):
        read_jsonl(file)


@pytest.mark.parametrize("text", ["[" * 100_000, b"\xff", "", "[1]", "null"])
def test_a_text_that_says_no_object_is_a_value_error(tmp_path, text):
    with pytest.raises(ValueError):
        json_object(text)
    file = tmp_path / "f"
    assert read_if_json(file) is None
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert read_if_json(file) is None
    file.write_text('{"a": 1}')
    assert read_if_json(file) == {"a": 1}


def test_values_may_be_nested_as_deeply_as_json_is_read():
    deep = json_value('{"a": [' * 400 + "0.1234567890123456789" + "]}" * 400)
    texts = json.dumps(as_written(deep))
    assert texts == '{"a": [' * 400 + '"0.1234567890123456789"' + "]}" * 400
    assert json.dumps(deep) == texts.replace('"0.1234567890123456789"', "0.12345678901234568")
