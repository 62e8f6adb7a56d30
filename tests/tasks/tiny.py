"""The models of chains that the benchmarks train, for tests that need a small one."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from chain_model import chain_tokenizer, tiny_model

sys.path.pop(0)  # modules there have the names of folders here

__all__ = ["chain_tokenizer", "tiny_model"]
