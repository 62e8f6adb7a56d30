"""`acpo data verl`: every problem once, and what verl needs to judge it."""

import json
from datetime import datetime

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from acpo.cli import app
from acpo.errors import ACPOError
from acpo.evaluate.parquet import _rows, write_verl
from acpo.tasks.registry import get_task
from acpo.verify import read_problem

PAPER = ("aime24", "aime25", "math500", "hmmt25", "beyondaime", "humaneval_pro")


@pytest.fixture
def small(tmp_path):
    train = [("What is 1+1?", "2"), ("What is 1+1?", "2"), ("What is 2+3?", "5")]
    train += [("Is it odd?", "yes"), ("Is it odd?", "no"), ("What  is 3+4?", "7")]
    rows = [json.dumps({"problem": p, "answer": a}) for p, a in train]
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    asked = {"problem": "What is 3+4?", "answer": "7"}
    (tmp_path / "mine.jsonl").write_text(json.dumps(asked))
    return tmp_path


def test_rows_by_hand(small):
    output = small / "verl"
    done = write_verl(
        output,
        task="custom",
        data=str(small / "train.jsonl"),
        benchmarks=[str(small / "mine.jsonl")],
    )
    assert (done.train, done.asked, done.validation) == (2, 1, {"mine": 1})
    train = pq.read_table(output / "train.parquet").to_pylist()
    assert [row["reward_model"]["ground_truth"] for row in train] == ["2", "5"]
    assert train[1] == {
        "data_source": "custom",
        "prompt": [
            {
                "role": "user",
                "content": "What is 2+3?\n\nPlease reason step by step, and put your final answer "
                "within \\boxed{}.",
            }
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "5"},
        "extra_info": {"judge": "math", "split": "train", "index": 1},
    }
    (question,) = pq.read_table(output / "validation.parquet").to_pylist()
    assert question["data_source"] == "mine"
    assert question["extra_info"]["split"] == "validation"


def test_the_command_says_what_it_wrote(small):
    command = ["data", "verl", str(small / "verl"), "--task", "custom"]
    command += ["--data", str(small / "train.jsonl"), "--benchmarks", str(small / "mine.jsonl")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "1 repeats" in result.output and "2 rows of 1 problems with conflicting" in result.output
    assert "1 of them left out" in result.output


def test_benchmarks_of_one_name_are_refused(small):
    (small / "other").mkdir()
    (small / "other" / "mine.jsonl").write_text((small / "mine.jsonl").read_text())
    both = [str(small / "mine.jsonl"), str(small / "other" / "mine.jsonl")]
    with pytest.raises(ACPOError, match="2 called 'mine'"):
        write_verl(small / "verl", task="custom", data=both[0], benchmarks=both)


def test_nothing_left_to_train_on_is_refused(small):
    mine = str(small / "mine.jsonl")
    with pytest.raises(ACPOError, match="ask all 1 training problems"):
        write_verl(small / "verl", task="custom", data=mine, benchmarks=[mine])
    assert not (small / "verl").exists()


def test_chains_have_no_file(small):
    with pytest.raises(ACPOError, match="chain is made on the fly"):
        write_verl(small / "verl", task="chain", benchmarks=[str(small / "mine.jsonl")])


def test_the_paper_s_data(shared_data, tmp_path):
    done = write_verl(
        tmp_path,
        data=str(shared_data / "dapo_math_17k.jsonl"),
        benchmarks=PAPER,
        data_dir=shared_data,
    )
    assert done.validation == dict(zip(PAPER, (30, 30, 500, 30, 100, 164), strict=True))
    train = pq.read_table(tmp_path / "train.parquet").to_pylist()
    texts = [row["prompt"][0]["content"] for row in train]
    assert len(set(texts)) == len(texts) == done.train == done.cleaning.kept - done.asked
    rows = pq.read_table(tmp_path / "validation.parquet").to_pylist()
    code = [row for row in rows if row["extra_info"]["judge"] == "code"]
    assert len(code) == 164
    read_problem(json.loads(code[0]["reward_model"]["ground_truth"]))


def test_what_judges_a_row_goes_with_it(small):
    write_verl(small / "verl", task="arithmetic", data=str(small / "train.jsonl"), benchmarks=[])
    first = pq.read_table(small / "verl" / "train.parquet").to_pylist()[0]
    assert first["extra_info"]["judge"] == "digits"
    assert first["reward_model"]["ground_truth"] == "2"


def test_dates_in_a_row_are_text():
    code = get_task("humaneval_pro")
    (row,) = _rows(code, [("p", {"made": datetime(2026, 1, 1)})], "test")
    assert json.loads(row["reward_model"]["ground_truth"]) == {"made": "2026-01-01 00:00:00"}
