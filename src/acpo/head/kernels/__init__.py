"""Triton kernels of the row step."""

from typing import Any

import torch
from torch import Tensor


def launch(kernel: Any, programs: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Start a kernel on its tensors' device: by itself Triton takes the current one."""
    with torch.cuda.device_of(next(x for x in arguments if isinstance(x, Tensor))):
        kernel[programs](*arguments, **options)
