"""One optimizer step's sequences, and how they are laid into packs that fit in memory.

Two layouts. "packed" joins sequences end to end in one row, so that no padding reaches the
backbone; it needs variable-length attention. "padded" puts sequences of similar length in the rows
of a rectangle.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from acpo.head import default_logits_bytes

Layout = Literal["packed", "padded"]

GROUP_COLUMN = "group_column"
JUDGED = "judged"
"""What we add to TRL's rollouts: a shaping's `[B, C]` column, and which rows have a verdict."""

CPU_BYTES = 2 << 30
MOST_TOKENS = {"cpu": 8192, "cuda": 65536}
SAFE_SHARE = 0.6


class Rows(NamedTuple):
    """The sequences of a mini-batch as spans of an id matrix."""

    start: list[int]  # first column of each row's prompt
    length: list[int]  # tokens through the backbone: not the last target, which predicts nothing
    targets: list[Tensor]  # per row, the columns whose tokens are predicted


class Pack(NamedTuple):
    """One forward pass, as indices into a mini-batch."""

    shape: tuple[int, int]  # rows and columns of the backbone's input
    tokens: int  # those that are not padding
    longest: int  # tokens of the longest sequence
    source: Tensor  # `[rows * columns]` flat indices into the id matrix; padding points at index 0
    positions: Tensor  # `[rows * columns]` position of each token in its sequence
    valid: Tensor  # `[rows * columns]`, false at padding
    boundaries: Tensor  # cumulative sequence lengths
    states: Tensor  # `[n]` flat indices of the states that predict each target
    rows: Tensor  # `[n]` mini-batch row of each target; a sequence's targets are consecutive
    columns: Tensor  # `[n]` column of each target in the id matrix

    def on(self, device: torch.device) -> "Pack":
        """The same with its tensors on a device."""
        return Pack(
            *(x.to(device, non_blocking=True) if isinstance(x, Tensor) else x for x in self)  # type: ignore[arg-type]
        )


def find_rows(*, attended: Tensor, targets: Tensor) -> Rows:
    """Where each sequence starts and how far it must be read to predict its targets.

    Args:
        attended: `[B, L]`, true from a row's first prompt token to its last completion token.
        targets: `[B, C]`, true at the tokens to predict among the last C; they are attended.
    """
    start = attended.int().argmax(1).tolist()
    first = attended.shape[1] - targets.shape[1]
    columns = [row.nonzero()[:, 0] + first for row in targets.cpu()]
    length = [int(c[-1]) - s if c.numel() else 0 for c, s in zip(columns, start, strict=True)]
    return Rows(start, length, columns)


def first_fit_decreasing(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Bins of indices whose lengths sum to at most `budget`; a longer sequence stands alone."""
    bins: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        for which, free in enumerate(room):
            if lengths[index] <= free:
                bins[which].append(index)
                room[which] -= lengths[index]
                break
        else:
            bins.append([index])
            room.append(budget - lengths[index])
    return bins


def group_by_length(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Groups of similar length whose padded rectangle holds at most `budget` tokens."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if groups and lengths[groups[-1][0]] * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def lay_out(
    rows: Rows, chosen: Sequence[int], *, width: int, budget: int, layout: Layout
) -> list[Pack]:
    """Packs holding the chosen rows of an id matrix with `width` columns."""
    lengths = [rows.length[i] for i in chosen]
    arrange = first_fit_decreasing if layout == "packed" else group_by_length
    return [
        _pack([chosen[i] for i in members], rows, width, layout)
        for members in arrange(lengths, budget)
    ]


def empty_pack() -> Pack:
    """A pass over one token without targets, for a rank that has run out of packs."""
    nothing = torch.zeros(0, dtype=torch.long)
    return _pack([0], Rows(start=[0], length=[1], targets=[nothing]), width=1, layout="packed")


def _pack(members: list[int], rows: Rows, width: int, layout: Layout) -> Pack:
    lengths = [rows.length[i] for i in members]
    longest = max(lengths)
    step = [longest] * len(members) if layout == "padded" else lengths
    offsets = [0, *torch.tensor(step).cumsum(0).tolist()]
    total = offsets[-1]
    source = torch.zeros(total, dtype=torch.long)
    positions = torch.zeros(total, dtype=torch.long)
    valid = torch.zeros(total, dtype=torch.bool)
    states, owners, columns = [], [], []
    for row, offset, length in zip(members, offsets, lengths, strict=False):
        span = slice(offset, offset + length)
        here = torch.arange(length)
        source[span] = row * width + rows.start[row] + here
        positions[span] = here
        valid[span] = True
        target = rows.targets[row]
        states.append(target - 1 - rows.start[row] + offset)
        owners.append(torch.full_like(target, row))
        columns.append(target)
    shape = (len(members), longest) if layout == "padded" else (1, total)
    boundaries = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    joined = (torch.cat(parts) for parts in (states, owners, columns))
    return Pack(shape, sum(lengths), longest, source, positions, valid, boundaries, *joined)


@dataclass
class MiniBatch:
    """The sequences of one optimizer step on one process."""

    ids: Tensor  # `[B, L]`, prompts left-padded, completions right-padded
    first: int  # the column at which completions begin
    mask: Tensor  # `[B, C]`, true at completion tokens that are trained on
    rows: Rows  # where the sequences are
    columns: dict[str, Tensor]  # per-token tensors, `[B, C]` each: old_logp, ref_logp, ...
    advantages: Tensor  # `[B]`, or `[B, C]` if reward functions gave some per token
    judged: Tensor  # `[B]`, false where a completion has no verdict and is not trained on
    num_tokens: Tensor  # trained tokens of an average optimizer step, over all processes

    @property
    def device(self) -> torch.device:
        return self.ids.device

    def __len__(self) -> int:
        return self.ids.shape[0]

    @classmethod
    def read(cls, inputs: Mapping[str, Any], *, share: float) -> "MiniBatch":
        """From what TRL's rollout hands over, this being a `share` of what it counts as items."""
        completion_mask = inputs["completion_mask"].bool()
        mask = completion_mask
        if inputs.get("tool_mask") is not None:
            mask = mask & inputs["tool_mask"].bool()
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attended = torch.cat([inputs["prompt_mask"].bool(), completion_mask], 1)
        first = inputs["prompt_ids"].shape[1]
        names = {
            "old_per_token_logps": "old_logp",
            "ref_per_token_logps": "ref_logp",
            "sampling_per_token_logps": "sampling_logp",
            "importance_sampling_ratio": "sampling_ratio",
            GROUP_COLUMN: "group",
        }
        columns = {
            ours: inputs[theirs].expand(mask.shape)
            for theirs, ours in names.items()
            if inputs.get(theirs) is not None
        }
        advantages = inputs["advantages"].float()
        judged = inputs.get(JUDGED, mask.new_ones(len(mask)))
        num_tokens = inputs["num_items_in_batch"].float() * share
        rows = find_rows(attended=attended, targets=mask)
        return cls(ids, first, mask, rows, columns, advantages, judged, num_tokens)

    def sequence_mean(self, x: Tensor) -> Tensor:
        """Mean over each row's trained tokens, `[B, 1]`."""
        total = torch.where(self.mask, x, 0.0).sum(1, keepdim=True)
        return total / self.mask.sum(1, keepdim=True).clamp_min(1)


def widest(config: Any, name: str) -> int:
    """A size of a decoder's layers, where they differ that of the largest; 0 if it has none."""
    layers = config.per_layer_config if getattr(config, "is_heterogeneous", False) else [config]
    sizes = [getattr(layer, name, None) or 0 for layer in layers]
    return max(max(size) if isinstance(size, list | tuple) else size for size in sizes)


def activation_bytes(config: Any, *, itemsize: int, checkpointing: bool) -> int:
    """Bytes of activations one token leaves behind, estimated from a decoder's shape.

    Per layer, what is kept for the backward pass is about ten vectors of the hidden width, four of
    the queries', four of the keys' and values', and five of the feed-forward width. Checkpointing
    keeps one hidden vector per layer and one layer's worth of the rest. A state-space layer that is
    read token by token keeps its states as well, three times and in float32, unless kernels do it.
    """
    hidden = config.hidden_size
    heads = widest(config, "num_attention_heads")
    head_dim = widest(config, "head_dim") or hidden // max(heads, 1)
    queries = heads * head_dim or hidden
    keys = widest(config, "num_key_value_heads") * head_dim or queries
    wide = widest(config, "intermediate_size") or 4 * hidden
    state = 0 if hasattr(config, "chunk_size") else widest(config, "state_size")
    layer = itemsize * (10 * hidden + 4 * queries + 4 * keys + 5 * wide) + 12 * wide * state
    layers = config.num_hidden_layers
    return layers * hidden * itemsize + layer if checkpointing else layers * layer


def free_bytes(
    model: Any,
    device: torch.device,
    *,
    logits_bytes: int | None,
    optimizer_started: bool,
    shards: int = 1,
    whole_gradients: bool = False,
) -> int:
    """Memory for activations, once weights, gradients and optimizer states have taken theirs.

    `shards` processes will share parameters that are not sharded yet. With `whole_gradients` each
    process holds the gradient of all of them until its last pack, as FSDP does without exchanges.
    """
    if device.type != "cuda":
        return CPU_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    pending = 0
    for parameter in model.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        size = local.nbytes // shards
        if parameter.requires_grad and not optimizer_started:
            pending += 3 * size  # its gradient and Adam's two moments
        if parameter.requires_grad and whole_gradients:
            pending += parameter.numel() * parameter.element_size()
        if parameter.device.type != device.type:
            pending += size
    head = model.get_output_embeddings().weight
    logits = (logits_bytes or default_logits_bytes(device)) + 4 * head.numel()
    return max(0, free - pending - logits)


def pack_budget(free: int, per_token: int, device: torch.device) -> int:
    """Tokens per pack, a multiple of 256."""
    share = 1.0 if device.type != "cuda" else SAFE_SHARE
    fitting = int(free * share) // per_token
    most = MOST_TOKENS.get(device.type, MOST_TOKENS["cpu"])
    return max(256, min(fitting, most) // 256 * 256)
