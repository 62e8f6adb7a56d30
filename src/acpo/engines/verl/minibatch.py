"""Rows that look at a whole mini-batch: gather it from the data-parallel ranks, shape, scatter."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.workers.utils.padding import no_padding_2_padding, response_to_nested

from acpo.engines.ranks import Ranks
from acpo.errors import ACPOError
from acpo.objectives import Method
from acpo.objectives.batch import sequences
from acpo.objectives.method import entropy_maximum
from acpo.objectives.shaping import Sequences

MARKS = "acpo_marks"


RolloutEntropy = dict[bytes, Tensor]
"""Entropies of the rollout policy, by the tokens of a sequence: updates may order them anew."""


def keep_entropy(data: TensorDict, entropy: Tensor) -> RolloutEntropy:
    """Of the pass that computed old log-probabilities, since verl drops them before the update."""
    padded = no_padding_2_padding(entropy, data).float().cpu()
    return dict(zip(_sequences(data), padded, strict=True))


def look_up_entropy(kept: RolloutEntropy, data: TensorDict) -> Tensor:
    """`[B, T]` for the rows of a mini-batch."""
    mask = _padded(data, "response_mask")
    found = torch.zeros(mask.shape, device=mask.device)
    for row, name in enumerate(_sequences(data)):
        if name not in kept:
            raise ACPOError(
                "a sequence of this mini-batch was not in the log-probability pass of its "
                "rollout; use trainer.v1.trainer_mode=sync"
            )
        known = kept[name][: mask.shape[1]]
        found[row, : len(known)] = known.to(found)
    return found


def _sequences(data: TensorDict) -> list[bytes]:
    """The tokens of each sequence, prompt and response, as a key."""
    return [row.cpu().numpy().tobytes() for row in data["input_ids"].unbind()]


def mini_batch_entropy_max(
    data: TensorDict, row: Method, *, entropy: Tensor, dp: Any
) -> float | None:
    """H_max over the valid tokens of all ranks."""
    mask = _padded(data, "response_mask").bool()
    largest = entropy_maximum(row, entropy, mask, Ranks(mask.device, group=dp))
    return None if largest is None else float(largest)


def shape_advantages(
    data: TensorDict, row: Method, *, group_size: int, seen: Mapping[str, Tensor], dp: Any
) -> None:
    """Replace the mini-batch's advantages by the row's token advantages, and add its marks.

    `seen` are `[B, T]` statistics: what the shaping needs of the current policy, and `old_entropy`
    of the rollout policy.
    """
    mask = _padded(data, "response_mask").bool()
    ranks = Ranks(mask.device, group=dp)
    advantages = _sequence_advantages(_padded(data, "advantages"), mask, ranks)
    column = None
    if row.shaping.group_needs:
        column = _group_column(data, row, group_size, seen, advantages, mask, ranks)
    current = {name: x for name, x in seen.items() if name != "old_entropy"}
    batch = sequences(
        row,
        advantages,
        mask,
        group=column,
        tokens=_padded(data, "responses"),
        old_logp=_padded(data, "old_log_probs") if "old_log_probs" in data else None,
        **current,
    )
    shaped = row.shape(batch, ranks)
    kept, judged = data["response_mask"], _judged(data, mask)
    for name, column in (("advantages", shaped.advantages), (MARKS, shaped.marks)):
        if column is not None:
            column = torch.where(judged, column, 0.0).to(kept.device)
            data[name] = response_to_nested(column, kept) if kept.is_nested else column


def _judged(data: TensorDict, mask: Tensor) -> Tensor:
    """`[B, 1]`: responses without a verdict have a reward of NaN, and nothing to learn from."""
    unjudged = torch.zeros_like(mask[:, :1])
    for name in ("token_level_scores", "rm_scores"):
        if name in data:
            unjudged |= _padded(data, name).isnan().any(1, keepdim=True)
    return ~unjudged


def read_marks(data: TensorDict) -> Tensor | None:
    """What the row's shaping left for its gate, `[B, T]`."""
    return _padded(data, MARKS) if MARKS in data else None


def _group_column(
    data: TensorDict,
    row: Method,
    group_size: int,
    seen: Mapping[str, Tensor],
    advantages: Tensor,
    mask: Tensor,
    ranks: Ranks,
) -> Tensor:
    """What the shaping finds in whole groups, for this rank's rows; groups may span ranks."""
    names = ranks.gather(_group_names(data).to(mask.device))
    _check_groups(names, group_size, row)
    order = names.argsort(stable=True)
    known = {**seen, "tokens": _padded(data, "responses")}
    columns = {"advantages": advantages, "mask": mask}
    columns |= {name: known[name] for name in row.shaping.group_needs}
    whole = {name: ranks.rows(x)[order] for name, x in columns.items()}
    found = row.shaping.of_group(Sequences(group_size=group_size, options=row.options, **whole))
    return found[order.argsort()][ranks.place * len(mask) :][: len(mask), : mask.shape[1]]


def _sequence_advantages(advantages: Tensor, mask: Tensor, ranks: Ranks) -> Tensor:
    """`[B]` from verl's `[B, T]`, if every rank's repeat one number over a response."""
    first = advantages.gather(1, mask.int().argmax(1, keepdim=True))
    differ = torch.where(mask, advantages != first, False).any()
    if bool(ranks.maximum(differ.float())):
        return torch.where(mask, advantages, 0.0)
    return torch.where(mask.any(1), first[:, 0], 0.0)


def _group_names(data: TensorDict) -> Tensor:
    """`[B]` numbers, equal for responses to one prompt."""
    uids = tu.get(data, "uid")
    if uids is None:
        raise ACPOError("the batch has no 'uid', so groups cannot be told apart; verl sets it")
    digests = [hashlib.blake2b(str(uid).encode(), digest_size=8).digest() for uid in uids]
    return torch.tensor([int.from_bytes(digest, signed=True) for digest in digests])


def _check_groups(names: Tensor, group_size: int, row: Method) -> None:
    sizes = set(Counter(names.tolist()).values())
    if sizes != {group_size}:
        raise ACPOError(
            f"policy_loss.loss_mode={row.name} compares all {group_size} responses to a prompt, "
            f"and this mini-batch holds only {min(sizes)} of one: set trainer.use_v1=False "
            "trainer.balance_batch=False, actor_rollout_ref.actor.shuffle=False and a "
            "ppo_mini_batch_size that the number of data-parallel ranks divides"
        )


def _padded(data: TensorDict, name: str) -> Tensor:
    """A per-response field, `[B, T]`, on the model's device: verl leaves batches on the CPU."""
    padded = data[name].to_padded_tensor(0) if data[name].is_nested else data[name]
    return padded.to(get_device_id())
