"""The few things the processes of a run tell each other."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from acpo.objectives.shaping import Reducer


class Ranks(Reducer):
    """Collectives that fall back to the identity in a single process.

    Args:
        device: where numbers are exchanged.
        together: whether the others take part; if not, this process is alone.
        group: those that do; all processes unless given.
    """

    def __init__(self, device: torch.device, *, together: bool = True, group: Any = None) -> None:
        self.device, self.together, self.group = device, together, group

    @property
    def count(self) -> int:
        """How many processes train together."""
        several = self.together and dist.is_available() and dist.is_initialized()
        return dist.get_world_size(self.group) if several else 1

    @property
    def place(self) -> int:
        """How many processes stand before this one."""
        return dist.get_rank(self.group) if self.count > 1 else 0

    def sum(self, x: Tensor) -> Tensor:
        """Sum over the processes; a new tensor."""
        return self._reduced(x, "SUM")

    def maximum(self, x: Tensor) -> Tensor:
        """Elementwise maximum over the processes; a new tensor."""
        return self._reduced(x, "MAX")

    def _reduced(self, x: Tensor, how: str) -> Tensor:
        x = x.clone()
        if self.count > 1:
            dist.all_reduce(x, op=getattr(dist.ReduceOp, how), group=self.group)
        return x

    def most(self, number: int) -> int:
        """The largest of the processes' numbers."""
        if self.count == 1:
            return number
        return int(self.maximum(torch.tensor(number, device=self.device)))

    def gather(self, values: Tensor) -> Tensor:
        """All processes' one-dimensional values, of whatever lengths, in rank order."""
        if self.count == 1:
            return values
        longest = self.most(values.numel())
        padded = values.new_zeros(longest)
        padded[: values.numel()] = values
        lengths = [torch.zeros(1, dtype=torch.long, device=self.device) for _ in range(self.count)]
        own = torch.tensor([values.numel()], device=self.device)
        dist.all_gather(lengths, own, group=self.group)
        everyone = [torch.empty_like(padded) for _ in range(self.count)]
        dist.all_gather(everyone, padded, group=self.group)
        return torch.cat([x[: int(n)] for x, n in zip(everyone, lengths, strict=True)])

    def rows(self, x: Tensor) -> Tensor:
        """All processes' rows, in rank order, padded on the right to the longest."""
        if self.count == 1 or x.dim() == 1:
            return self.gather(x)
        width = max(1, self.most(x.shape[1]))
        return self.gather(functional.pad(x, (0, width - x.shape[1])).flatten()).view(-1, width)
