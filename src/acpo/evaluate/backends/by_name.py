"""The backend a command line names; no other is imported."""

from typing import Any

from acpo.evaluate.backends import Backend, Sampling, SamplingError


def make_backend(name: str, model: str, sampling: Sampling, **options: Any) -> Backend:
    """The backend of that name.

    Args:
        name: `transformers`, `vllm` or `openai`.
        model: Hub id, folder, or the name under which a server has it.
        sampling: How completions are drawn.
        **options: What that backend's constructor takes.
    """
    if name == "openai":
        from acpo.evaluate.backends.openai import OpenAIBackend

        return OpenAIBackend(model, sampling, **options)
    if name == "transformers":
        from acpo.evaluate.backends.transformers import TransformersBackend

        return TransformersBackend(model, sampling, **options)
    if name == "vllm":
        from acpo.evaluate.backends.vllm import VLLMBackend

        return VLLMBackend(model, sampling, **options)
    raise SamplingError(f"backend={name!r}: use transformers, vllm or openai")
