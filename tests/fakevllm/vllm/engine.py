"""The engine that evaluations step: random tokens made from the seed (from the prompt at
temperature 0), read by the checkpoint's own tokenizer. One step adds one to every running request.
"""

import random
from dataclasses import dataclass, field
from types import SimpleNamespace

from transformers import AutoConfig, AutoTokenizer

from vllm.made import Record, signed
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams

# What tests read and set.
ENGINES: list["LLMEngine"] = []
FAULTS: dict[str, object] = {}


class VLLMValidationError(Exception):
    pass


class EngineArgs(Record):
    pass


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
        if (args.max_model_len or limit) > limit:
            raise ValueError(f"max_model_len ({args.max_model_len}) is greater than {limit}")
        self.args = args
        self.model_config = SimpleNamespace(max_model_len=args.max_model_len or limit)
        self.tokenizer = AutoTokenizer.from_pretrained(args.tokenizer or args.model)
        self.waiting: list[_Request] = []
        self.running: list[_Request] = []
        self.admitted: list[tuple[list[int], SamplingParams]] = []
        self.most_at_once = self.steps = 0
        ENGINES.append(self)

    @classmethod
    @signed("LLMEngine.from_engine_args")
    def from_engine_args(cls, engine_args: EngineArgs, **options) -> "LLMEngine":
        return cls(engine_args)

    @signed("LLMEngine.add_request")
    def add_request(self, request_id, prompt, params, arrival_time=None, **options) -> str:
        if not isinstance(request_id, str):
            raise TypeError(f"request_id must be a string, got {type(request_id)}")
        assert isinstance(prompt, dict) and prompt["type"] == "token"
        tokens = prompt["prompt_token_ids"]
        if not tokens or len(tokens) >= self.model_config.max_model_len:
            raise VLLMValidationError(f"The decoder prompt (length {len(tokens)}) is too long")
        rng = random.Random(params.seed if params.temperature else str(tokens))
        known = self.tokenizer.get_vocab()
        letters = [known[letter] for letter in "abcdefgh" if letter in known] or list(range(3, 11))
        script = [*rng.choices(letters, k=rng.randrange(1, 40)), self.tokenizer.eos_token_id]
        self.admitted.append((tokens, params))
        self.waiting.append(_Request(request_id, tokens, params, script))
        self.most_at_once = max(self.most_at_once, len(self.waiting) + len(self.running))
        return f"{request_id}-0a1b2c3d"  # with a suffix of vLLM's own, as there

    @signed("LLMEngine.abort_request")
    def abort_request(self, request_ids: list[str], **options) -> None:
        self.waiting = [request for request in self.waiting if request.name not in request_ids]
        self.running = [request for request in self.running if request.name not in request_ids]

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
        limit = self.model_config.max_model_len
        full = len(request.tokens) >= params.max_tokens or length >= limit
        reason = "stop" if ended or stop else "length" if full else None
        if reason and FAULTS.get("reason"):
            reason = FAULTS["reason"]
        text = text.partition(stop)[0] if stop else text
        output = CompletionOutput(
            0, text, list(request.tokens), None, None, finish_reason=reason, stop_reason=stop
        )
        done = reason is not None
        outputs = [] if done and FAULTS.get("empty") else [output]
        return RequestOutput(request.name, None, request.prompt, None, outputs, done)
