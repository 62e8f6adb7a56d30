"""`LLM`, which TRL trains with: draws by a model of its own, whose weights are loaded one by one.

FAULTS["gap"] multiplies its logits, so that it draws from other probabilities than the trainer's.
"""

from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from vllm.engine import FAULTS, EngineArgs, LLMEngine
from vllm.made import TABLE, signed
from vllm.outputs import CompletionOutput, Logprob, RequestOutput

LLMS: list["LLM"] = []


class LLM:
    def __init__(self, model: str, **options: Any) -> None:
        unknown = set(options) - set(TABLE["LLM"]) - set(TABLE["EngineArgs"])
        if unknown:
            raise TypeError(f"EngineArgs() got an unexpected keyword argument {unknown.pop()!r}")
        known = {name: x for name, x in options.items() if name in TABLE["EngineArgs"]}
        self.options = options
        self.llm_engine = LLMEngine(EngineArgs(model=model, **known))
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.llm_engine.model_executor = SimpleNamespace(
            driver_worker=SimpleNamespace(
                model_runner=SimpleNamespace(model=SimpleNamespace(load_weights=self._load))
            )
        )
        self.generator = torch.Generator().manual_seed(options.get("seed", 0))
        self.asleep: set[str] = set()
        self.loaded: list[str] = []
        self.naps = 0
        LLMS.append(self)

    def _load(self, weights: Any) -> None:
        if "weights" in self.asleep:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        own = dict(self.model.named_parameters())
        for name, value in weights:
            own[name].data.copy_(value)
            self.loaded.append(name)

    @signed("LLM.sleep")
    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        self.asleep, self.naps = {"weights", "kv_cache"}, self.naps + 1
        if level == 2:
            for parameter in self.model.parameters():
                parameter.data.fill_(torch.nan)

    @signed("LLM.wake_up")
    def wake_up(self, tags: list[str] | None = None) -> None:
        self.asleep -= set(tags or self.asleep)

    @signed("LLM.reset_prefix_cache")
    def reset_prefix_cache(self, *_: Any, **__: Any) -> bool:
        return True

    @signed("LLM.generate")
    def generate(self, prompts: Any, sampling_params: Any = None, **_: Any) -> list[RequestOutput]:
        if self.asleep:
            raise RuntimeError(f"the engine is asleep: {sorted(self.asleep)}")
        each = sampling_params if isinstance(sampling_params, list) else None
        params = each or [sampling_params] * len(prompts)
        requests = [
            (prompt["prompt_token_ids"], one)
            for prompt, one in zip(prompts, params, strict=True)
            for _ in range(one.n)
        ]
        drawn = iter(self._draw(requests))
        return [
            RequestOutput(
                str(number), None, prompt["prompt_token_ids"], None,
                [next(drawn) for _ in range(one.n)], True,
            )
            for number, (prompt, one) in enumerate(zip(prompts, params, strict=True))
        ]  # fmt: skip

    @torch.no_grad()
    def _draw(self, requests: list[Any]) -> list[CompletionOutput]:
        ends = self.model.generation_config.eos_token_id
        ends = set(ends if isinstance(ends, list) else [ends])
        tokens: list[list[int]] = [[] for _ in requests]
        told: list[list[dict[int, Logprob]]] = [[] for _ in requests]
        reasons: list[str | None] = [None] * len(requests)
        while live := [i for i, reason in enumerate(reasons) if reason is None]:
            logp = self._next([[*requests[i][0], *tokens[i]] for i in live], requests[live[0]][1])
            for i, row in zip(live, logp, strict=True):
                params = requests[i][1]
                token = int(torch.multinomial(row.exp(), 1, generator=self.generator))
                tokens[i].append(token)
                if params.logprobs is not None:
                    shown = {token, *row.topk(params.logprobs).indices.tolist()}
                    rank = {t: int((row > row[t]).sum()) + 1 for t in shown}
                    told[i].append({t: Logprob(float(row[t]), rank[t]) for t in shown})
                if token in ends and not params.ignore_eos:
                    reasons[i] = "stop"
                elif len(tokens[i]) >= params.max_tokens:
                    reasons[i] = "length"
        decode = self.llm_engine.tokenizer.decode
        return [
            CompletionOutput(0, decode(ids), ids, None, lp or None, finish_reason=reason)
            for ids, lp, reason in zip(tokens, told, reasons, strict=True)
        ]

    def _next(self, rows: list[list[int]], params: Any) -> torch.Tensor:
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        places = (mask.cumsum(1) - 1).clamp_min(0)
        logits = self.model(input_ids=ids, attention_mask=mask, position_ids=places).logits[:, -1]
        return torch.log_softmax(logits.double() * FAULTS.get("gap", 1.0) / params.temperature, -1)
