"""A stand-in for the part of vLLM that we and TRL use, made from its signatures."""

from vllm.engine import ENGINES, FAULTS, EngineArgs, LLMEngine, VLLMValidationError
from vllm.offline import LLM, LLMS
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import SamplingParams

__all__ = [
    "ENGINES",
    "FAULTS",
    "LLM",
    "LLMS",
    "CompletionOutput",
    "EngineArgs",
    "LLMEngine",
    "RequestOutput",
    "SamplingParams",
    "VLLMValidationError",
]
__version__ = "0.25.1"
