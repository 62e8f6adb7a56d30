"""How a request is sampled, refused as vLLM refuses it."""

from enum import Enum

from vllm.made import TABLE, Record

RequestOutputKind = Enum("RequestOutputKind", TABLE["RequestOutputKind"])


class StructuredOutputsParams(Record):
    pass


class SamplingParams(Record):
    def check(self) -> None:
        self.stop = self.stop or []
        self.output_kind = self.output_kind or RequestOutputKind.CUMULATIVE
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}.")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}.")
