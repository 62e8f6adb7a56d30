"""Batched sampling from the very weights that are being trained.

Every sequence has a slot of the cache. All that run advance together, one token per step; every few
steps the host looks which have ended, hands their slots to the next prompts, and goes on with a
batch of the rows that are left. On CUDA the decoder layers are compiled and a step is captured as
a graph, once per batch size: a small model's step is hundreds of kernels of microseconds each,
which Python cannot launch as fast as they run.
"""

import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from acpo.errors import ACPOError, NonFiniteError
from acpo.head.projection import Projection, matmul
from acpo.sampling.cache import StaticKV, refuse_attention
from acpo.sampling.draw import NOTHING, draw, greedy, uniform_table
from acpo.sampling.twin import Twin

LOOK_EVERY = 8
"""Steps between looks at which rows have ended; a look waits for the device."""
READ_TOKENS = 1 << 16
"""Prompt tokens, padding included, that are read in one pass."""
RUNNING, ENDED, NOT_FINITE = range(3)

Uniforms = Callable[[list[int]], Tensor]
"""The random numbers of the prompts at some places, `[n, max_new_tokens]`."""
Ended = tuple[int, list[int], list[float]]
"""A completion that has ended: the place of its prompt, its tokens, and the `logp` of each."""


class Samples(NamedTuple):
    """Completions, one per prompt given, in their order; the token that ended one is its last.

    `logp` is of each token, under the distribution it was drawn from; of the likeliest one, which
    temperature 0 takes, at temperature 1.
    """

    tokens: list[list[int]]
    logp: list[list[float]]


class _Slots:
    """What a step reads and writes of each slot, in buffers that stay where they are.

    The last slot is nobody's: rows that only fill up a batch sit there, ended.
    """

    def __init__(self, rows: int, new_tokens: int, device: torch.device) -> None:
        self.numbers = torch.zeros(5, rows + 1, dtype=torch.long, device=device)
        self.numbers[4] = ENDED
        # Its latest token, filled places of the cache, drawn tokens, most it may draw, how it is.
        self.last, self.filled, self.drawn, self.limit, self.status = self.numbers
        shape = (rows + 1, new_tokens)
        self.uniforms = torch.zeros(shape, dtype=torch.float64, device=device)
        self.tokens = torch.zeros(shape, dtype=torch.long, device=device)
        self.logp = torch.zeros(shape, dtype=torch.float32, device=device)
        self.batch = torch.zeros(rows, dtype=torch.long, device=device)


class _Request(NamedTuple):
    place: int
    prompt: Sequence[int]
    limit: int


class StaticSampler:
    """Continues prompts with one model, many at a time.

    Args:
        model: a causal LM, not wrapped; its parameters are read at every call.
        rows: completions sampled together; on CUDA the memory of that many is held.
        max_new_tokens: longest completion.
        eos: tokens that end a completion.
        pad: any token; fills up prompts of different lengths.
        temperature: 0 takes the likeliest token.
        autocast: the dtype to compute in when it is not the weights'.
        graphs, compiled: whether to capture steps and compile layers; by default, on CUDA.
    """

    def __init__(
        self,
        model: Any,
        *,
        rows: int,
        max_new_tokens: int,
        eos: Sequence[int],
        pad: int,
        temperature: float = 1.0,
        autocast: torch.dtype | None = None,
        graphs: bool | None = None,
        compiled: bool | None = None,
    ) -> None:
        for name, value in {"rows": rows, "max_new_tokens": max_new_tokens}.items():
            if value < 1:
                raise ACPOError(f"{name}={value} must be at least 1")
        if temperature < 0:
            raise ACPOError(f"temperature={temperature} must not be negative")
        refuse_attention(model)
        self.model, self.rows, self.new_tokens = model, rows, max_new_tokens
        self.device = next(model.parameters()).device
        self.dtype = autocast or model.dtype
        self.autocast = autocast
        self.temperature, self.pad = temperature, pad
        self.eos = torch.tensor(sorted(set(eos)), dtype=torch.long, device=self.device)
        cuda = self.device.type == "cuda"
        self.graphs = cuda if graphs is None else graphs
        self.compiled = cuda if compiled is None else compiled
        # Batches come in these sizes, each with a graph of its own.
        steps = (size << n for n in range(24) for size in (8, 12))
        self.sizes = [*itertools.takewhile(lambda size: size < rows, steps), rows]
        # Nobody waits for one more prompt: reading a few costs as much as reading many.
        self._worth_reading = max(1, rows // 4)
        self._slots = _Slots(rows, max_new_tokens, self.device)
        self._forget()

    def _forget(self) -> None:
        self._twin: Twin | None = None
        self._cache: StaticKV | None = None
        self._captured: dict[int, Any] = {}

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seed: tuple[int, ...],
        limits: Sequence[int] | None = None,
    ) -> Samples:
        """One completion per prompt. Equal prompts that start together are read once.

        Args:
            prompts: token ids; none empty.
            seed: with `max_new_tokens` and the place in `prompts`, decides every draw.
            limits: longest completion of each prompt, where that is less than `max_new_tokens`.
        """
        samples = Samples([[] for _ in prompts], [[] for _ in prompts])
        table = uniform_table(len(prompts), self.new_tokens, seed)
        for place, tokens, logp in self.stream(prompts, table.__getitem__, limits):
            samples.tokens[place], samples.logp[place] = tokens, logp
        return samples

    @torch.no_grad()
    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        uniforms: Uniforms,
        limits: Sequence[int] | None = None,
    ) -> Iterator[Ended]:
        """The same, each completion as it ends; `uniforms` is asked for those that begin."""
        if any(not prompt for prompt in prompts):
            raise ACPOError("prompts: one is empty; a completion needs a token to follow")
        if limits is not None and any(not 1 <= limit <= self.new_tokens for limit in limits):
            raise ACPOError(f"limits: each must be from 1 to max_new_tokens={self.new_tokens}")
        limits = [self.new_tokens] * len(prompts) if limits is None else limits
        if len(limits) != len(prompts):
            raise ACPOError(f"limits: {len(limits)} of them for {len(prompts)} prompts")
        requests = map(_Request, range(len(prompts)), prompts, limits)
        # Neighbours of similar length pad little; equal prompts stay together.
        waiting = deque(sorted(requests, key=lambda r: (len(r.prompt), tuple(r.prompt))))
        try:
            if waiting:
                yield from self._run(self.prepare(len(waiting[-1].prompt)), waiting, uniforms)
        except BaseException:
            self._forget()  # what a broken rollout left behind must not meet the next
            raise

    @torch.no_grad()
    def prepare(self, longest: int) -> StaticKV:
        """Weights of the moment and room for the longest prompt; graphs last as long as both."""
        length = -(-(longest + self.new_tokens) // 64) * 64
        if self._cache is not None and self._cache.length < length:
            self._cache = None
            self._captured.clear()
        if self._twin is not None and self._twin.moved():
            self._forget()
        if self._twin is None:
            self._twin = Twin(self.model, self.autocast)
            for layer in self._layers() if self.compiled else ():
                # Rounds where the layer as it is does: it is that one which is trained.
                layer.compile(dynamic=True, options={"emulate_precision_casts": True})
        self._twin.refresh()
        if self._cache is None:
            config = self.model.config.get_text_config()
            self._cache = StaticKV(
                config, slots=self.rows + 1, length=length, dtype=self.dtype, device=self.device
            )
            self._compare(self._cache)
        return self._cache

    def _compare(self, cache: StaticKV) -> None:
        """Refuse a model that says something else through the cache than by itself."""
        positions = torch.arange(8, device=self.device)[None]
        ids = positions % self.model.config.get_text_config().vocab_size
        nobodys = torch.full((self.sizes[0],), self.rows, device=self.device)
        cache.reading(nobodys[:1], torch.zeros_like(nobodys[:1]))
        training = self.model.training
        self.model.eval()
        try:
            with torch.compiler.set_stance("force_eager"), self._autocast():
                own = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
                read = self._hidden(ids[:, :7], positions[:, :7], cache)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError) as error:
            raise ACPOError(
                f"sampler='static': the attention of {type(self.model).__name__} does not go "
                f"through the static cache ({error}); use sampler='generate'"
            ) from error
        finally:
            self.model.train(training)
        cache.stepping(nobodys, torch.full_like(nobodys, 7))
        last, place = (x[:, 7:].repeat(len(nobodys), 1) for x in (ids, positions))
        step = self._hidden(last, place, cache)
        ours = torch.cat([read, step[:1]], 1).float()
        apart = float((ours - own.float()).norm() / own.float().norm())
        if apart > (0.1 if self.dtype.itemsize == 2 else 0.01):  # NaN is found later
            raise ACPOError(
                f"sampler='static': the hidden states of {type(self.model).__name__} through the "
                f"static cache are {apart:.0%} from its own: it keeps more than keys and values; "
                "use sampler='generate'"
            )

    def _layers(self) -> list[Any]:
        assert self._twin is not None
        modules = self._twin.backbone.modules()
        return [module for module in modules if isinstance(module, GradientCheckpointingLayer)]

    def _run(
        self, cache: StaticKV, waiting: deque[_Request], uniforms: Uniforms
    ) -> Iterator[Ended]:
        running: dict[int, _Request] = {}
        free = list(range(self.rows))
        left = 0
        self._slots.status.fill_(ENDED)
        while waiting or running:
            if waiting and len(free) >= min(len(waiting), self._worth_reading):
                count = min(len(free), len(waiting))
                joining = {free.pop(0): waiting.popleft() for _ in range(count)}
                self._admit(cache, joining, uniforms)
                running |= joining
            else:
                self._advance(cache, sorted(running), min(left, LOOK_EVERY))
            ended, left = self._look(running)
            for slot in ended:
                del running[slot]
            free += ended
            yield from ended.values()

    def _look(self, running: dict[int, _Request]) -> tuple[dict[int, Ended], int]:
        """What ended, by slot, and the most steps any other can go."""
        drawn, _, status = self._slots.numbers[2:].tolist()
        for slot, request in running.items():
            if status[slot] == NOT_FINITE:
                raise NonFiniteError(
                    f"prompts[{request.place}]: the logits after {drawn[slot]} new tokens are not "
                    "finite, so no token can be drawn; look for NaN in the weights, or for "
                    f"activations beyond the range of {self.dtype}"
                )
        slots = [slot for slot in running if status[slot] == ENDED]
        ended = {}
        if slots:
            chosen = torch.tensor(slots, device=self.device)
            tokens, logp = (x[chosen].tolist() for x in (self._slots.tokens, self._slots.logp))
            for slot, row, scores in zip(slots, tokens, logp, strict=True):
                count = drawn[slot]
                ended[slot] = (running[slot].place, row[:count], scores[:count])
        rest = (running[slot].limit - drawn[slot] for slot in running if status[slot] == RUNNING)
        return ended, max(rest, default=0)

    def _admit(self, cache: StaticKV, joining: dict[int, _Request], uniforms: Uniforms) -> None:
        """Read prompts into free slots, each different one once, and draw their first tokens."""
        slots, requests = list(joining), list(joining.values())
        at = torch.tensor(slots, device=self.device)
        new = [[0, len(r.prompt), 0, r.limit, RUNNING] for r in requests]
        self._slots.numbers[:, at] = torch.tensor(new, device=self.device).T
        self._slots.uniforms[at] = uniforms([r.place for r in requests]).to(self.device)
        first = 0
        while first < len(requests):
            places: dict[tuple[int, ...], int] = {}
            copies: list[int] = []
            for request in requests[first:]:
                prompt = tuple(request.prompt)
                if places and (len(places) + 1) * len(prompt) > READ_TOKENS:
                    break
                copies.append(places.setdefault(prompt, len(places)))
            there = at[first : first + len(copies)]
            self._read(cache, list(places), there, torch.tensor(copies, device=self.device))
            first += len(copies)

    def _read(
        self, cache: StaticKV, prompts: list[tuple[int, ...]], slots: Tensor, copies: Tensor
    ) -> None:
        width = max(map(len, prompts))
        ids = torch.tensor([[*p, *[self.pad] * (width - len(p))] for p in prompts])
        positions = torch.arange(width, device=self.device).expand(len(prompts), -1)
        cache.reading(slots, copies)
        with torch.compiler.set_stance("force_eager"):
            hidden = self._hidden(ids.to(self.device), positions, cache)
        self._draw(hidden[copies, self._slots.filled[slots] - 1], slots)

    def _advance(self, cache: StaticKV, running: list[int], steps: int) -> None:
        """Some steps of the running rows, filled up to a size that has a graph."""
        size = len(running)
        if self.graphs:
            size = next(size for size in self.sizes if size >= len(running))
        batch = running + [self.rows] * (size - len(running))
        self._slots.batch[:size] = torch.tensor(batch, device=self.device)
        for _ in range(steps):
            graph = self._captured.get(size)
            if graph is not None:
                graph.replay()
                continue
            self._step(cache, size)  # warms up what capture may not allocate
            if self.graphs:
                self._captured[size] = self._capture(cache, size)

    def _step(self, cache: StaticKV, size: int) -> None:
        """Advance the batch by one token; no shape or address depends on data."""
        slots = self._slots.batch[:size]
        filled = self._slots.filled[slots]
        cache.stepping(slots, filled)
        hidden = self._hidden(self._slots.last[slots][:, None], filled[:, None], cache)
        self._slots.filled[slots] = filled + (self._slots.status[slots] == RUNNING)
        self._draw(hidden[:, 0], slots)

    def _hidden(self, ids: Tensor, positions: Tensor, cache: StaticKV) -> Tensor:
        assert self._twin is not None
        backbone = self._twin.backbone
        # A mask of four dimensions is taken to be made already, and no other is made.
        mask = torch.zeros(1, 1, 1, 1, dtype=self.dtype, device=self.device)
        inputs = {"input_ids": ids, "position_ids": positions, "attention_mask": mask}
        with self._autocast():
            try:
                out = backbone(**inputs, use_cache=False, static_kv=cache)
            except ACPOError:
                raise
            except Exception as error:
                if not self.compiled or (self.graphs and torch.cuda.is_current_stream_capturing()):
                    raise
                self._without_compiling(error)
                out = backbone(**inputs, use_cache=False, static_kv=cache)
        return out.last_hidden_state

    def _autocast(self) -> torch.autocast:
        enabled = self.autocast is not None
        return torch.autocast(self.device.type, dtype=self.autocast, enabled=enabled)

    def _without_compiling(self, error: Exception) -> None:
        said = " ".join(str(error).split())[:200]
        warnings.warn(
            "the sampler's layers do not compile and run as they are, which is slower: "
            f"{type(error).__name__}: {said}",
            RuntimeWarning,
            stacklevel=2,
        )
        self.compiled = False
        for layer in self._layers():
            layer._compiled_call_impl = None

    def _draw(self, hidden: Tensor, slots: Tensor) -> None:
        """The next token of every slot that runs."""
        assert self._twin is not None
        head, state = self._twin.head, self._slots
        logits = torch.empty(
            hidden.shape[0], head.weight.shape[0], dtype=torch.float32, device=self.device
        )
        matmul(hidden.to(self.dtype), head.weight.t(), logits)
        if head.bias is not None:
            logits += head.bias
        projection = Projection(self.temperature or 1.0, head.softcap, head.logit_scale)
        drawn = state.drawn[slots]
        at = slots, drawn.clamp(max=self.new_tokens - 1)
        if self.temperature:
            tokens, logp = draw(logits, state.uniforms[at], projection)
        else:
            tokens, logp = greedy(logits, projection)
        status = state.status[slots]
        runs, found = status == RUNNING, tokens != NOTHING
        goes_on = runs & found
        ends = (tokens[:, None] == self.eos).any(1) | (drawn + 1 >= state.limit[slots])
        state.tokens[at] = torch.where(goes_on, tokens, state.tokens[at])
        state.logp[at] = torch.where(goes_on, logp, state.logp[at])
        state.last[slots] = tokens.clamp(min=0)
        state.drawn[slots] = drawn + goes_on
        status = status.masked_fill(goes_on & ends, ENDED)
        state.status[slots] = status.masked_fill(runs & ~found, NOT_FINITE)

    def _capture(self, cache: StaticKV, size: int) -> Any:
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._captured.values())).pool() if self._captured else None
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self._step(cache, size)
        return graph
