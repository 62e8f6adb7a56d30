"""The part of vLLM 0.32 that the backend uses, with its names, signatures and refusals.

In place of a model it has random tokens, made from the seed (from the prompt at temperature 0) and
read by the checkpoint's own tokenizer. One step adds one token to every running request.
"""

import random
from dataclasses import dataclass, field

from transformers import AutoConfig, AutoTokenizer

from vllm.sampling_params import RequestOutputKind, SamplingParams

# What tests read and set.
ENGINES: list["LLMEngine"] = []
FAULTS: dict[str, object] = {}


class VLLMValidationError(Exception):
    pass


@dataclass
class EngineArgs:
    model: str
    tokenizer: str | None = None
    dtype: str = "auto"
    seed: int = 0
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.92
    max_num_seqs: int | None = None
    disable_log_stats: bool = False
    generation_config: str = "auto"


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: None
    outputs: list[CompletionOutput]
    finished: bool


@dataclass
class _Request:
    name: str
    prompt: list[int]
    params: SamplingParams
    script: list[int]
    tokens: list[int] = field(default_factory=list)


class LLMEngine:
    def __init__(self, args: EngineArgs) -> None:
        if fault := FAULTS.get("start"):
            raise fault
        limit = AutoConfig.from_pretrained(args.model).max_position_embeddings
        if args.max_model_len > limit:
            raise ValueError(f"max_model_len ({args.max_model_len}) is greater than {limit}")
        self.args = args
        self.tokenizer = AutoTokenizer.from_pretrained(args.tokenizer or args.model)
        self.waiting: list[_Request] = []
        self.running: list[_Request] = []
        self.admitted: list[tuple[list[int], SamplingParams]] = []
        self.most_at_once = self.steps = 0
        ENGINES.append(self)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **options) -> "LLMEngine":
        return cls(engine_args)

    def add_request(self, request_id, prompt, params, arrival_time=None, **options) -> str:
        if not isinstance(request_id, str):
            raise TypeError(f"request_id must be a string, got {type(request_id)}")
        assert isinstance(prompt, dict) and prompt["type"] == "token"
        tokens = prompt["prompt_token_ids"]
        if not tokens or len(tokens) >= self.args.max_model_len:
            raise VLLMValidationError(f"The decoder prompt (length {len(tokens)}) is too long")
        rng = random.Random(params.seed if params.temperature else str(tokens))
        letters = [self.tokenizer.convert_tokens_to_ids(letter) for letter in "abcdefgh"]
        script = [*rng.choices(letters, k=rng.randrange(1, 40)), self.tokenizer.eos_token_id]
        self.admitted.append((tokens, params))
        self.waiting.append(_Request(request_id, tokens, params, script))
        self.most_at_once = max(self.most_at_once, len(self.waiting) + len(self.running))
        return f"{request_id}-0a1b2c3d"  # with a suffix of vLLM's own, as there

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self) -> list[RequestOutput]:
        self.steps += 1
        if self.steps == FAULTS.get("die"):
            raise RuntimeError("EngineCore encountered an issue.\nSee stack trace")
        if self.steps == FAULTS.get("drop"):
            self.waiting, self.running = [], []
        free = (self.args.max_num_seqs or 256) - len(self.running)
        self.running += self.waiting[:free]
        self.waiting = self.waiting[free:]
        outputs = [(request, self._advance(request)) for request in self.running]
        self.running = [request for request, output in outputs if not output.finished]
        return [
            output
            for request, output in outputs
            if output.finished or request.params.output_kind is RequestOutputKind.CUMULATIVE
        ]

    def _advance(self, request: _Request) -> RequestOutput:
        params = request.params
        request.tokens.append(request.script[len(request.tokens)])
        ended = request.tokens[-1] == self.tokenizer.eos_token_id
        text = self.tokenizer.decode(request.tokens, skip_special_tokens=True)
        stop = next((word for word in params.stop if word in text), None)
        length = len(request.prompt) + len(request.tokens)
        full = len(request.tokens) >= params.max_tokens or length >= self.args.max_model_len
        reason = "stop" if ended or stop else "length" if full else None
        if reason and FAULTS.get("reason"):
            reason = FAULTS["reason"]
        text = text.partition(stop)[0] if stop else text
        output = CompletionOutput(0, text, list(request.tokens), None, None, reason, stop)
        done = reason is not None
        outputs = [] if done and FAULTS.get("empty") else [output]
        return RequestOutput(request.name, None, request.prompt, None, outputs, done)
