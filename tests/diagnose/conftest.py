"""The packaged model's own distributions, and figures drawn once."""

from importlib.resources import files
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from acpo.diagnose import report


class States(NamedTuple):
    """Tokens the chain model sampled, with all that led to them, in float64."""

    hidden: Tensor
    weight: Tensor
    logits: Tensor
    tokens: Tensor


@pytest.fixture(scope="session")
def chain_states() -> States:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = str(files("acpo.tasks") / "checkpoints" / "chain")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    prompts = tokenizer(["3+6+6+6*6*5:", "9*7-8*4+1-2:"] * 16, return_tensors="pt").input_ids
    with torch.no_grad():
        ids = model.generate(prompts, do_sample=True, max_new_tokens=22, top_k=0)
        states = model(ids, output_hidden_states=True).hidden_states[-1]
    start = prompts.shape[1]
    hidden = states[:, start - 1 : -1].reshape(-1, states.shape[-1])
    weight = model.get_output_embeddings().weight.detach()
    return States(hidden, weight, hidden @ weight.T, ids[:, start:].reshape(-1))


@pytest.fixture
def no_pdf(monkeypatch):
    """Figures are drawn as PNG only: a PDF costs as much again, and other tests look at it."""
    drawn = report.rendered
    monkeypatch.setattr(
        report, "rendered", lambda figure, kind: drawn(figure, kind) if kind == "png" else b"%PDF"
    )
