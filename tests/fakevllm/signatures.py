"""The signatures of vLLM that we and TRL call, read from its sources; nothing is imported.

    python tests/fakevllm/signatures.py FOLDER   # with the sources of one version, writes the JSON

The stand-in beside this file is made from them, and refuses whatever they do not name.
"""

import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "signatures.json"
WANTED = {
    "EngineArgs": ("engine/arg_utils.py", "EngineArgs"),
    "SamplingParams": ("sampling_params.py", "SamplingParams"),
    "StructuredOutputsParams": ("sampling_params.py", "StructuredOutputsParams"),
    "RequestOutputKind": ("sampling_params.py", "RequestOutputKind"),
    "CompletionOutput": ("outputs.py", "CompletionOutput"),
    "Logprob": ("logprobs.py", "Logprob"),
    "RequestOutput": ("outputs.py", "RequestOutput.__init__"),
    "LLM": ("entrypoints/llm.py", "LLM.__init__"),
    "LLM.generate": ("entrypoints/llm.py", "LLM.generate"),
    "LLM.sleep": ("entrypoints/llm.py", "LLM.sleep"),
    "LLM.wake_up": ("entrypoints/llm.py", "LLM.wake_up"),
    "LLM.reset_prefix_cache": ("entrypoints/llm.py", "LLM.reset_prefix_cache"),
    "LLMEngine.from_engine_args": ("v1/engine/llm_engine.py", "LLMEngine.from_engine_args"),
    "LLMEngine.add_request": ("v1/engine/llm_engine.py", "LLMEngine.add_request"),
    "LLMEngine.abort_request": ("v1/engine/llm_engine.py", "LLMEngine.abort_request"),
    "LLMEngine.step": ("v1/engine/llm_engine.py", "LLMEngine.step"),
    "LLMEngine.has_unfinished_requests": (
        "v1/engine/llm_engine.py",
        "LLMEngine.has_unfinished_requests",
    ),
    "get_ip": ("utils/network_utils.py", "get_ip"),
    "NCCLTrainerSendWeightsArgs": (
        "distributed/weight_transfer/nccl_engine.py",
        "NCCLTrainerSendWeightsArgs",
    ),
    "NCCLWeightTransferEngine": (
        "distributed/weight_transfer/nccl_engine.py",
        "NCCLWeightTransferEngine",
    ),
    "tokens_input": ("inputs/engine.py", "tokens_input"),
}
OPAQUE = "<computed>"


def signatures(read: Callable[[str], str]) -> dict[str, dict[str, Any]]:
    """Names and defaults of every wanted signature, in order.

    Args:
        read: the text of a file of vLLM, by its path below the package.
    """
    return {name: _signature(ast.parse(read(path)), what) for name, (path, what) in WANTED.items()}


def _signature(tree: ast.Module, what: str) -> dict[str, Any]:
    node: Any = tree
    for part in what.split("."):
        node = next(n for n in node.body if getattr(n, "name", None) == part)
    if isinstance(node, ast.ClassDef):
        return dict(_field(entry) for entry in node.body if _is_field(entry))
    given = node.args
    plain = given.posonlyargs + given.args
    defaults = [OPAQUE] * (len(plain) - len(given.defaults)) + [*map(_value, given.defaults)]
    found = dict(zip([a.arg for a in plain], defaults, strict=True))
    found |= {a.arg: _value(d) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True)}
    if given.kwarg is not None:
        found[f"**{given.kwarg.arg}"] = OPAQUE
    return {name: value for name, value in found.items() if name not in ("self", "cls")}


def _is_field(entry: ast.stmt) -> bool:
    if isinstance(entry, ast.AnnAssign):
        return "ClassVar" not in ast.unparse(entry.annotation)
    return isinstance(entry, ast.Assign) and isinstance(entry.value, ast.Constant)


def _field(entry: Any) -> tuple[str, Any]:
    target = entry.target if isinstance(entry, ast.AnnAssign) else entry.targets[0]
    return target.id, _value(entry.value)


def _value(node: ast.expr | None) -> Any:
    try:
        return OPAQUE if node is None else ast.literal_eval(node)
    except ValueError:
        return OPAQUE


if __name__ == "__main__":
    package = Path(sys.argv[1]) / "vllm"
    table = signatures(lambda path: (package / path).read_text(encoding="utf-8"))
    FILE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
