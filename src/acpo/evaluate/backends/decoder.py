"""Generation that keeps its batch full: whoever ends makes room for whoever waits.

One forward pass per token over all running sequences, padded on the left. A sequence that ends
leaves the batch at once; when a quarter of the places are free, the next prompts are read in
together and join. Every sequence draws with its own random numbers, so what it says does not depend
on its neighbours beyond rounding.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import DynamicCache, DynamicLayer

from acpo.evaluate.backends import Sampling, SamplingError
from acpo.head.projection import Projection
from acpo.sampling.draw import NOTHING, draw, uniform_table

# Special tokens, which say nothing, that may stand among those of a stop text.
_SILENT_TOKENS = 32
_SPARE_TOKENS = 64


class Job(NamedTuple):
    """A prompt to continue."""

    key: Any
    tokens: list[int]
    seed: int


class Finished(NamedTuple):
    """A continued prompt: its new tokens, the one that ended it included, and why it ended."""

    key: Any
    tokens: list[int]
    finish: str
    seconds: float


@dataclass
class _Row:
    job: Job
    uniforms: list[float]
    start: float
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    given: bool = False


class _RoomyLayer(DynamicLayer):
    """A cache layer that writes a token behind the last one, where `cat` would copy them all.

    `keys` and `values` are the used part of larger tensors; whoever sets them to others, as joining
    and cutting do, has them copied to larger ones at the next token.
    """

    def __init__(self, layer: DynamicLayer) -> None:
        super().__init__()
        self.dtype, self.device = layer.dtype, layer.device
        self.keys, self.values = layer.keys, layer.values
        self.is_initialized = True
        self._rooms: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.keys is not None and self.values is not None
        used = self.keys.shape[-2]
        end = used + key_states.shape[-2]
        rooms = self._rooms
        if rooms is None or rooms[0].data_ptr() != self.keys.data_ptr() or rooms[0].shape[-2] < end:
            rooms = _with_room(self.keys, end), _with_room(self.values, end)
            self._rooms = rooms
        rooms[0][:, :, used:end] = key_states
        rooms[1][:, :, used:end] = value_states
        self.keys, self.values = rooms[0][:, :, :end], rooms[1][:, :, :end]
        return self.keys, self.values


def _with_room(states: torch.Tensor, end: int) -> torch.Tensor:
    rows, heads, used, width = states.shape
    larger = states.new_empty(rows, heads, end + _SPARE_TOKENS, width)
    larger[:, :, :used] = states
    return larger


class Decoder:
    """Continues prompts, `batch_size` together, with a causal language model in evaluation mode.

    `ends` are the tokens that end a sequence; `says` turns tokens to text where `sampling.stop`
    needs it.
    """

    def __init__(
        self,
        model: Any,
        sampling: Sampling,
        *,
        ends: frozenset[int],
        batch_size: int,
        says: Callable[[list[int]], str] | None = None,
    ) -> None:
        self._model = model
        self._sampling = sampling
        self._ends = ends
        self._batch_size = batch_size
        self._says = says
        # Enough for any stop text to show up in, however it is cut: a token has a byte or more.
        longest = max((len(text.encode()) for text in sampling.stop), default=0)
        self._stop_window = longest + _SILENT_TOKENS
        self._rows: list[_Row] = []
        self._cache: Any = None
        self._mask = torch.empty(0)  # [B, L], 0 on the padding
        # Only plain caches can be joined and cut; with others a batch runs to its end.
        layers = DynamicCache(config=model.config.get_text_config()).layers
        self._plain = all(type(layer) is DynamicLayer for layer in layers)

    def run(self, jobs: Sequence[Job]) -> Iterator[Finished]:
        """Continue every job, in the order in which they end."""
        # Neighbours of similar length pad little.
        waiting = deque(sorted(jobs, key=lambda job: -len(job.tokens)))
        while waiting or self._rows:
            with torch.inference_mode():
                if waiting and self._has_room(len(waiting)):
                    free = self._batch_size - len(self._rows)
                    self._admit([waiting.popleft() for _ in range(min(free, len(waiting)))])
                else:
                    self._step()
                finished = [self._give(r) for r in self._rows if r.finish and not r.given]
                self._shrink()
            yield from finished

    def _has_room(self, waiting: int) -> bool:
        if not self._rows:
            return True
        free = self._batch_size - len(self._rows)
        return self._plain and free >= min(waiting, max(1, self._batch_size // 4))

    def _admit(self, jobs: list[Job]) -> None:
        """Read prompts in, each different one once, and join them to the batch."""
        most, now = self._sampling.max_tokens, time.perf_counter()
        rows = [_Row(job, uniform_table(1, most, job.seed)[0].tolist(), now) for job in jobs]
        prompts = [job.tokens for job in jobs]
        order = list(range(len(jobs)))
        if self._plain:
            places: dict[tuple[int, ...], int] = {}
            order = [places.setdefault(tuple(prompt), len(places)) for prompt in prompts]
            prompts = [list(prompt) for prompt in places]
        texts = [torch.tensor(prompt, dtype=torch.long) for prompt in prompts]
        tokens, mask = (
            pad_sequence(part, batch_first=True, padding_side="left").to(self._model.device)
            for part in (texts, [torch.ones_like(text) for text in texts])
        )
        out = self._model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            use_cache=True,
            logits_to_keep=1,
        )
        chosen = torch.tensor(order, device=mask.device)
        if len(prompts) < len(jobs):
            out.past_key_values.batch_select_indices(chosen)
        self._join(out.past_key_values, mask[chosen])
        self._rows += rows
        self._draw(rows, out.logits[chosen, -1])

    def _step(self) -> None:
        last = torch.tensor([row.tokens[-1] for row in self._rows], device=self._mask.device)
        self._mask = functional.pad(self._mask, (0, 1), value=1)
        out = self._model(
            input_ids=last[:, None],
            attention_mask=self._mask,
            position_ids=self._mask.sum(-1, keepdim=True) - 1,
            past_key_values=self._cache,
            use_cache=True,
        )
        self._draw(self._rows, out.logits[:, -1])

    def _draw(self, rows: list[_Row], logits: torch.Tensor) -> None:
        """Give every row its next token, and see whether that was its last."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self._sampling.temperature == 0:
            best, tokens = logits.max(-1)
            tokens = tokens.masked_fill(~best.isfinite(), NOTHING)
        else:
            # Floats: a tensor for each row would be as many operations at every step.
            points = [row.uniforms[len(row.tokens) - bool(row.finish)] for row in rows]
            uniforms = torch.tensor(points, dtype=torch.float64, device=logits.device)
            projection = Projection(self._sampling.temperature)
            tokens, _ = draw(logits, uniforms, projection, self._sampling.top_p)
        for row, token in zip(rows, tokens.tolist(), strict=True):
            if row.finish is not None:
                continue
            if token == NOTHING:
                raise SamplingError(
                    f"the model's logits after {len(row.tokens)} new tokens are not finite, so no "
                    "token can be drawn: its weights hold NaN, or its activations overflow "
                    f"{self._model.dtype}"
                )
            row.tokens.append(token)
            if token in self._ends or self._stopped(row):
                row.finish = "stop"
            elif len(row.tokens) >= self._sampling.max_tokens:
                row.finish = "length"

    def _stopped(self, row: _Row) -> bool:
        if not self._sampling.stop or self._says is None:
            return False
        tail = self._says(row.tokens[-self._stop_window :])
        return any(text in tail for text in self._sampling.stop)

    def _give(self, row: _Row) -> Finished:
        row.given = True  # the row itself may have to stay a while
        seconds = time.perf_counter() - row.start
        return Finished(row.job.key, row.tokens, row.finish or "", seconds)

    def _join(self, cache: Any, mask: torch.Tensor) -> None:
        """Add sequences to the batch, all padded to the longest."""
        if not self._rows:
            self._cache, self._mask = cache, mask
            if self._plain:
                cache.layers = [_RoomyLayer(layer) for layer in cache.layers]
            return
        length = max(self._mask.shape[1], mask.shape[1])
        grow, shift = length - self._mask.shape[1], length - mask.shape[1]
        for old, new in zip(self._cache.layers, cache.layers, strict=True):
            for name in ("keys", "values"):
                kept = functional.pad(getattr(old, name), (0, 0, grow, 0))
                added = functional.pad(getattr(new, name), (0, 0, shift, 0))
                setattr(old, name, torch.cat([kept, added]))
        self._mask = torch.cat(
            [functional.pad(self._mask, (grow, 0)), functional.pad(mask, (shift, 0))]
        )

    def _shrink(self) -> None:
        """Let sequences that ended go, and the padding that only they needed."""
        kept = [number for number, row in enumerate(self._rows) if row.finish is None]
        if not kept:
            self._rows, self._cache = [], None
        elif len(kept) < len(self._rows) and self._plain:
            self._rows = [self._rows[number] for number in kept]
            index = torch.tensor(kept, device=self._mask.device)
            mask = self._mask[index]
            first = int(mask.any(0).int().argmax())
            self._mask = mask[:, first:]
            for layer in self._cache.layers:
                layer.keys = layer.keys[index, :, first:]
                layer.values = layer.values[index, :, first:]
