"""Completions from vLLM in this process.

vLLM's `generate` returns when the last sequence has ended. Here its engine is stepped instead, so
that every sample is kept when it ends, whatever happens to the rest.
"""

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from acpo.evaluate.backends import Completion, Failure, Request, Sampling, SamplingError
from acpo.evaluate.backends.checkpoint import Checkpoint
from acpo.vllm_version import require_vllm


class VLLMBackend:
    """A model loaded with vLLM (`acpo.vllm_version` says which), on one GPU.

    Weights are loaded for the first sample, in the checkpoint's precision.

    `engine` is a vLLM engine that has the model already.
    """

    def __init__(
        self, model: str, sampling: Sampling, *, batch_size: int = 256, engine: Any = None
    ) -> None:
        # vLLM logs to stdout, where the scores go.
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        try:
            require_vllm("--backend vllm")
            import vllm
        except ImportError as error:
            raise SamplingError(
                f"--backend vllm: vLLM cannot be imported ({error}): install it again, or use "
                "another backend"
            ) from error
        self._vllm, self._given = vllm, engine
        self._checkpoint = Checkpoint(model, sampling)
        if self._checkpoint.base != self._checkpoint.place:
            raise SamplingError(
                f"model {model!r} is an adapter, which this backend does not load: use --backend "
                "transformers, or `vllm serve --enable-lora` with --base-url"
            )
        self._sampling = sampling
        self._batch_size = batch_size

    def settings(self) -> dict[str, Any]:
        return self._checkpoint.settings("vllm", self._checkpoint.dtype)

    def sample(self, requests: Sequence[Request]) -> Iterator[Completion | Failure]:
        prompts = self._checkpoint.prompts(requests)
        with self._failures():
            engine = self._given or self._engine(max(map(len, prompts.values()), default=0))
        waiting = deque(enumerate(requests))
        running: dict[str, tuple[Request, float]] = {}
        try:
            while waiting or running:
                with self._failures():
                    # No more than fit: the clock of a sample starts when it does.
                    while waiting and len(running) < self._batch_size:
                        number, request = waiting.popleft()
                        self._admit(engine, str(number), prompts[request.prompt], request.seed)
                        running[str(number)] = request, time.perf_counter()
                    finished = [output for output in engine.step() if output.finished]
                for output in finished:
                    request, start = running.pop(output.request_id)
                    yield self._completion(request, output.outputs, time.perf_counter() - start)
                if running and not engine.has_unfinished_requests():
                    raise SamplingError(f"vLLM dropped {len(running)} requests without an answer")
        finally:
            if running and self._given is not None:  # whoever has the engine goes on with it
                with contextlib.suppress(Exception):
                    engine.abort_request(list(running))

    def _engine(self, longest_prompt: int) -> Any:
        args = self._vllm.EngineArgs(
            model=self._checkpoint.place,
            dtype=str(self._checkpoint.dtype).removeprefix("torch."),
            # The model's own limit may need more memory than there is, and is not needed.
            max_model_len=longest_prompt + self._sampling.max_tokens,
            max_num_seqs=self._batch_size,
            disable_log_stats=True,
        )
        return self._vllm.LLMEngine.from_engine_args(args)

    def _admit(self, engine: Any, name: str, prompt: list[int], seed: int) -> None:
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params = SamplingParams(
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            max_tokens=self._sampling.max_tokens,
            stop=list(self._sampling.stop),
            seed=seed,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        engine.add_request(name, tokens_input(prompt), params)

    def _completion(
        self, request: Request, outputs: Sequence[Any], seconds: float
    ) -> Completion | Failure:
        if not outputs:
            return Failure(request.key, "vLLM ended a request without an output")
        output = outputs[0]
        if output.finish_reason not in ("stop", "length"):
            return Failure(request.key, f"vLLM ended a request with {output.finish_reason!r}")
        tokens = len(output.token_ids)
        # A text that stopped it was written by the model; the token that ended it is no text.
        if output.finish_reason == "stop" and not isinstance(output.stop_reason, str):
            tokens -= 1
        ids = list(output.token_ids)
        text = self._checkpoint.thinking(request.prompt) + output.text
        return Completion(request.key, text, tokens, output.finish_reason, seconds, ids)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Whatever goes wrong in vLLM ends the sampling, and nothing else."""
        try:
            yield
        except Exception as error:
            said = str(error).strip().splitlines() or [repr(error)]
            raise SamplingError(
                f"vLLM, model {self._checkpoint.name!r}: {type(error).__name__}: {said[0]}"
            ) from error
