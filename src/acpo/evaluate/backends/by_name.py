"""The backend a command line names; no other is imported."""

import importlib
from typing import Any

from acpo.evaluate.backends import Backend, Sampling, SamplingError

_CLASSES = {
    "openai": "OpenAIBackend",
    "transformers": "TransformersBackend",
    "vllm": "VLLMBackend",
}


def make_backend(name: str, model: str, sampling: Sampling, **options: Any) -> Backend:
    """The backend of that name, with the options its constructor takes."""
    if name not in _CLASSES:
        raise SamplingError(f"backend={name!r}: use transformers, vllm or openai")
    module = importlib.import_module(f"acpo.evaluate.backends.{name}")
    backend: Backend = getattr(module, _CLASSES[name])(model, sampling, **options)
    return backend
