"""Batched sampling from the very weights that are being trained.

All completions of a chunk advance together, one token per step, over a cache of fixed shape. On
CUDA a step is captured once per cache length as a graph and replayed: a small model's step is a
thousand kernels of microseconds each, which Python cannot launch as fast as they run. The graph
reads the model's own parameters, which the optimizer changes in place, so nothing is copied and
nothing is captured again as training goes on.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.head.lookup import language_model_head
from acpo.head.projection import Projection, matmul
from acpo.sampling.cache import (
    StaticKV,
    additive,
    left_padded,
    refuse_attention,
    static_attention_in,
)
from acpo.sampling.draw import draw, greedy, uniform_table

LOOK_EVERY = 16
"""Steps between looks at whether every row has ended; a look waits for the device."""


class Samples(NamedTuple):
    """Completions, one per prompt given, in their order.

    Attributes:
        tokens: without padding; the token that ended one is its last.
        logp: of each token, under the distribution it was drawn from.
    """

    tokens: list[list[int]]
    logp: list[list[float]]


class _Rows:
    """What a step reads and writes, in buffers that stay where they are."""

    def __init__(self, rows: int, new_tokens: int, device: torch.device) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.last = zeros(rows, 1)
        self.positions = zeros(rows, 1)
        self.starts = zeros(rows)
        self.ended = zeros(rows, dtype=torch.bool)
        self.step = zeros(1)
        self.uniforms = zeros(rows, new_tokens, dtype=torch.float64)
        self.tokens = zeros(rows, new_tokens)
        self.logp = zeros(rows, new_tokens, dtype=torch.float32)


class StaticSampler:
    """Continues prompts with one model, many at a time.

    Args:
        model: a causal LM, not wrapped; its parameters are read at every call.
        rows: completions sampled together; on CUDA the memory of that many is held.
        max_new_tokens: longest completion.
        eos: tokens that end a completion.
        pad: what stands beyond the end.
        temperature: 0 takes the likeliest token.
        autocast: the dtype to compute in when it is not the weights'.
        graphs: whether to capture steps; by default, on CUDA.
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
        self.graphs = self.device.type == "cuda" if graphs is None else graphs
        # Cache lengths come in steps, each with a graph of its own; without graphs, finer ones.
        self.grain = 128 if self.graphs else 8
        self._cache: StaticKV | None = None
        self._state: _Rows | None = None
        self._captured: dict[int, Any] = {}

    @torch.no_grad()
    def sample(self, prompts: Sequence[Sequence[int]], *, seed: tuple[int, ...]) -> Samples:
        """One completion per prompt. Equal prompts are read once.

        Args:
            prompts: token ids; none empty.
            seed: with the place in `prompts`, decides every draw.
        """
        if any(not prompt for prompt in prompts):
            raise ACPOError("prompts: one is empty; a completion needs a token to follow")
        uniforms = uniform_table(len(prompts), self.new_tokens, seed)
        # Neighbours of similar length pad little; equal prompts stay together.
        order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), tuple(prompts[i])))
        tokens: list[list[int]] = [[] for _ in prompts]
        logp: list[list[float]] = [[] for _ in prompts]
        training = self.model.training
        self.model.eval()
        try:
            with static_attention_in(self.model):
                for first in range(0, len(order), self.rows):
                    chosen = order[first : first + self.rows]
                    chunk = self._chunk([prompts[i] for i in chosen], uniforms[chosen])
                    for place, row, scores in zip(chosen, *chunk, strict=True):
                        tokens[place], logp[place] = row, scores
        finally:
            self.model.train(training)
        return Samples(tokens, logp)

    def _chunk(
        self, prompts: list[Sequence[int]], uniforms: Tensor
    ) -> tuple[list[list[int]], list[list[float]]]:
        count = len(prompts)
        # A graph has one shape: what is missing is filled up with rows that have already ended.
        prompts = prompts + [prompts[-1]] * (self.rows - count) if self.graphs else prompts
        width = self._rounded(max(map(len, prompts)))
        cache, state = self._buffers(len(prompts), width)
        state.uniforms[:count] = uniforms.to(self.device)
        state.ended.zero_()
        state.ended[count:] = True
        state.tokens.fill_(self.pad)
        state.step.zero_()
        self._read(prompts, width, cache, state)
        self._decode(width, cache, state)
        return self._collect(count, state)

    def _rounded(self, length: int) -> int:
        return -(-length // self.grain) * self.grain

    def _buffers(self, rows: int, width: int) -> tuple[StaticKV, _Rows]:
        """Cache and state for this many rows; graphs last as long as they do."""
        length = self._rounded(width + self.new_tokens)
        cache, state = self._cache, self._state
        if cache is None or state is None or cache.rows != rows or cache.length < length:
            self._captured.clear()
            self._cache = self._state = cache = state = None
            cache = StaticKV(
                self.model.config.get_text_config(),
                rows=rows,
                length=length,
                dtype=self.dtype,
                device=self.device,
            )
            state = _Rows(rows, self.new_tokens, self.device)
            self._cache, self._state = cache, state
        return cache, state

    def _read(
        self, prompts: list[Sequence[int]], width: int, cache: StaticKV, state: _Rows
    ) -> None:
        """Fill the cache with the prompts, and draw every row's first token."""
        places: dict[tuple[int, ...], int] = {}
        copies = [places.setdefault(tuple(prompt), len(places)) for prompt in prompts]
        ids, starts = (x.to(self.device) for x in left_padded(list(places), width, self.pad))
        copies_of = torch.tensor(copies, device=self.device)
        columns = torch.arange(width, device=self.device)
        real = columns >= starts[:, None]
        # Padding sees itself: a row of nothing but -inf would be NaN.
        causal = (columns[:, None] >= columns) & real[:, None]
        seen = causal | (columns[:, None] == columns)
        cache.copies = copies_of
        try:
            hidden = self._backbone(
                ids, (columns - starts[:, None]).clamp_(min=0), additive(seen, self.dtype), cache
            )
        finally:
            cache.copies = None
        state.starts.copy_(starts[copies_of])
        state.positions.copy_((width - 1 - state.starts)[:, None])
        cache.cursor.fill_(width - 1)
        self._draw(hidden[:, -1].index_select(0, copies_of), cache, state)

    def _decode(self, width: int, cache: StaticKV, state: _Rows) -> None:
        for step in range(1, self.new_tokens):
            if step % LOOK_EVERY == 1 and bool(state.ended.all()):
                return
            cache.visible = self._rounded(width + step)
            graph = self._captured.get(cache.visible)
            if graph is not None:
                graph.replay()
            else:
                self._step(cache, state)  # warms up what capture may not allocate
                if self.graphs:
                    self._captured[cache.visible] = self._capture(cache, state)

    def _step(self, cache: StaticKV, state: _Rows) -> None:
        """Advance every row by one token; no shape or address depends on data."""
        places = torch.arange(cache.visible, device=self.device)
        seen = (places >= state.starts[:, None]) & (places <= cache.cursor)
        mask = additive(seen, self.dtype)
        hidden = self._backbone(state.last, state.positions, mask[:, None], cache)
        self._draw(hidden[:, 0], cache, state)

    def _backbone(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: StaticKV) -> Tensor:
        # Casts of weights must be part of the graph: cached ones would be those of the past.
        with torch.autocast(
            self.device.type,
            dtype=self.autocast,
            enabled=self.autocast is not None,
            cache_enabled=False,
        ):
            return self.model.base_model(
                input_ids=ids,
                position_ids=positions,
                attention_mask=mask[:, None],
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state

    def _draw(self, hidden: Tensor, cache: StaticKV, state: _Rows) -> None:
        head = language_model_head(self.model)
        weight = head.weight.to(self.dtype)
        logits = torch.empty(
            hidden.shape[0], weight.shape[0], dtype=torch.float32, device=self.device
        )
        matmul(hidden.to(self.dtype), weight.t(), logits)
        if head.bias is not None:
            logits += head.bias
        projection = Projection(self.temperature or 1.0, head.softcap, head.logit_scale)
        scaled = projection.scaled(logits)
        if self.temperature:
            tokens, logp = draw(scaled, state.uniforms.index_select(1, state.step)[:, 0])
        else:
            tokens, logp = greedy(scaled)
        tokens = tokens.masked_fill(state.ended, self.pad)
        state.tokens.index_copy_(1, state.step, tokens[:, None])
        state.logp.index_copy_(1, state.step, logp[:, None])
        state.ended |= torch.isin(tokens, self.eos)
        state.last.copy_(tokens[:, None])
        state.positions += 1
        cache.cursor += 1
        state.step += 1

    def _capture(self, cache: StaticKV, state: _Rows) -> Any:
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._captured.values())).pool() if self._captured else None
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self._step(cache, state)
        return graph

    def _collect(self, count: int, state: _Rows) -> tuple[list[list[int]], list[list[float]]]:
        tokens, logp = state.tokens[:count], state.logp[:count]
        drawn = int(state.step)
        ends = torch.isin(tokens, self.eos)
        ends[:, drawn:] = False
        first = torch.where(ends.any(1), ends.int().argmax(1) + 1, drawn).tolist()
        rows = [row[:length] for row, length in zip(tokens.tolist(), first, strict=True)]
        scores = [row[:length] for row, length in zip(logp.tolist(), first, strict=True)]
        return rows, scores
