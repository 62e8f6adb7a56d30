"""Every kernel compiles for a Hopper GPU, which needs none: the interpreter checks no types."""

import importlib.util
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from conftest import require_tool

HERE = Path(__file__).parent


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """Kernels are compiled instead of launched; the names of those that were."""
    try:
        from triton.backends.compiler import GPUTarget
        from triton.runtime import driver
        from triton.runtime.jit import JITFunction
    except ImportError:
        require_tool(False, "triton")

    class Hopper:
        def get_current_device(self):
            return 0

        def get_current_stream(self, device):
            return 0

        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

    names = []
    plain = JITFunction.run

    guarded = []

    @contextmanager
    def device_of(tensor):
        guarded.append(tensor)
        yield
        guarded.pop()

    def compile_only(self, *args, grid, warmup, **options):
        names.append(self.__name__)
        assert guarded, f"{self.__name__} starts on the current device, wherever its tensors are"
        return plain(self, *args, grid=grid, warmup=True, **options)

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(JITFunction, "run", compile_only)
    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(type(driver), "active", Hopper())
    return names


def test_head(compiled, monkeypatch):
    from acpo.head import triton
    from acpo.head.projection import Projection
    from acpo.head.rows import RowCoefficients, RowStats, RowSums, Sparsity

    spec = importlib.util.spec_from_file_location("head_cases", HERE / "kernel_cases.py")
    cases = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cases)
    raw, tokens = cases.chunk(300)
    empty = RowStats.empty(len(tokens), tokens.device, torch.float32)
    stats = RowStats(*(torch.zeros_like(column) for column in empty))
    extras = list(cases.TERMS.values())
    rows = {cases.METHODS[row].gate: row for row in cases.LOCAL} | {"delta": "acpo"}
    for number, row in enumerate(rows.values()):
        terms = cases.terms_for(row, tokens, -torch.ones(len(tokens)), **extras[number % 3])
        dtype = (torch.float32, torch.bfloat16)[number % 2]
        triton.policy_gradient(raw, Projection(0.8), terms, stats, dtype)
    sums = RowSums.empty(len(tokens), raw.device, raw.dtype)
    triton.row_sums(raw, tokens, Projection(0.9, 4.0), sums)
    c = RowCoefficients(*torch.ones(4, len(tokens)))
    every = stats._replace(logp=-torch.ones(len(tokens)))  # no row is left out
    triton.gradient(
        raw, tokens, Projection(), every, c, torch.bfloat16, Sparsity(1e-6, torch.ones(len(tokens)))
    )
    few = c._replace(top=torch.ones(len(tokens), 3))
    for softcap, dtype in ((None, torch.float32), (4.0, torch.bfloat16)):
        clean = raw.clone(), torch.zeros_like(tokens), Projection(0.9, softcap)
        monkeypatch.setattr(torch, "empty", torch.zeros)  # ids that no kernel writes
        triton.gradient(*clean, stats, few, dtype)
    triton.scale_(torch.ones(8), torch.ones(()))
    assert {
        "row_kernel",
        "distribution_kernel",
        "column_maximum_kernel",
        "selected_gradient_kernel",
        "likeliest_kernel",
        "scale_kernel",
    } <= set(compiled)


def test_sampling(compiled):
    from acpo.head.projection import Projection
    from acpo.sampling import kernels

    for softcap in (None, 4.0):
        uniforms = torch.zeros(2, dtype=torch.float64)
        kernels.draw(torch.zeros(2, 300), uniforms, Projection(0.9, softcap))
    query, key = torch.zeros(2, 4, 1, 24), torch.zeros(2, 2, 1, 24)
    for dtype in (torch.float32, torch.bfloat16):
        cache = torch.zeros(3, 2, 64, 24, dtype=dtype)
        place = torch.zeros(2, dtype=torch.long)
        kernels.attend(query, key, key, cache, cache.clone(), place, place, 0.2)
    assert {"draw_kernel", "attention_kernel"} <= set(compiled)
