"""The policy's forward pass: packed sequences in, hidden states kept inside, a loss out.

The terms of the loss travel through the wrapped model (`model(**inputs, policy=terms)`), so that
DDP and FSDP hooks fire, and the output head is looked up inside the root module's forward, where
FSDP2 has gathered its weights.
"""

import functools
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from acpo.engines.attention import PACKED
from acpo.engines.trl.packing import Layout, widest
from acpo.errors import ACPOError
from acpo.head import TokenTerms, fused_policy_loss, language_model_head, token_stats
from acpo.sampling.cache import unusual_attention, unusual_layers


class HeadOptions(NamedTuple):
    """How the head computes."""

    float32: bool = False  # in float32, outside autocast (TRL's `cast_lm_head_to_fp32`)
    logits_bytes: int | None = None  # memory for a chunk of logits; the head's default if None
    sparse: float | None = None  # leave out gradient entries below this share of their row's weight


def add_policy_forward(model: Any, options: HeadOptions = HeadOptions()) -> None:  # noqa: B008
    """Teach a causal LM to answer `model(..., policy=TokenTerms)`; other calls are unchanged.

    The answer is the loss, or 0 where only statistics were asked for; both are written to the
    terms as well.
    """
    original = model.forward

    @functools.wraps(type(model).forward)
    def forward(self: Any, *args: Any, policy: TokenTerms | None = None, **kwargs: Any) -> Any:
        if policy is None:
            return original(*args, **kwargs)
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        kwargs["use_cache"] = False
        hidden = self.base_model(*args, **kwargs).last_hidden_state
        states = hidden.reshape(-1, hidden.shape[-1]).index_select(0, policy.states)
        return answer(self, states, policy, options)

    model.forward = types.MethodType(forward, model)


def answer(model: Any, hidden: Tensor, terms: TokenTerms, options: HeadOptions) -> Tensor:
    """The loss of the tokens that the `[n, H]` states predict; 0 if only statistics are wanted."""
    head = language_model_head(model)
    hidden = hidden.to(head.weight.device)
    device = hidden.device.type
    amp = torch.is_autocast_enabled(device) and not options.float32
    if options.float32:
        hidden = hidden.float()
    with torch.autocast(device, enabled=amp):
        if terms.advantages is not None:
            return fused_policy_loss(
                hidden, head, terms, sparse=options.sparse, logits_bytes=options.logits_bytes
            )
        terms.stats = token_stats(
            hidden.detach(),
            head,
            terms.tokens,
            temperature=terms.temperature,
            align_tol=terms.align_tol,
            logits_bytes=options.logits_bytes,
        )
        return hidden.new_zeros(())


class Attention(NamedTuple):
    """Which layout a model's update uses, and the attention function that goes with it."""

    layout: Layout  # "packed" or "padded"
    reason: str  # why, in words for the log
    implementation: str | None = None  # to install during the update; None keeps the model's own

    def __str__(self) -> str:
        return f"update layout: {self.layout} ({self.reason})"

    @contextmanager
    def installed(self, *models: Any) -> Iterator[None]:
        """Use it for everything inside, backward passes that recompute the forward included."""
        configs = [m.config for m in models if m is not None]
        before = [c._attn_implementation for c in configs]
        try:
            if self.implementation is not None:
                for config in configs:
                    config._attn_implementation = self.implementation
            yield
        finally:
            for config, value in zip(configs, before, strict=True):
                config._attn_implementation = value


class CompiledLayers:
    """A policy's decoder layers, compiled, for the passes of the update alone.

    What is compiled is each layer's `forward`, so that the hooks of FSDP, DDP and gradient
    checkpointing stay around it. Shapes are dynamic from the start: packs differ in length, and
    none compiles anew. Generation keeps the layers as they were, and so does a layer that torch
    cannot compile, with its reason in the log. The policy is unwrapped.
    """

    def __init__(self, policy: Any) -> None:
        self.layers = decoder_layers(policy)
        self._compiled: list[Any] | None = None

    @property
    def graphs(self) -> int:
        """How many graphs this process has compiled so far, whoever asked."""
        return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Use them for everything inside, backward passes included."""
        if self._compiled is None:
            self._compiled = [torch.compile(layer.forward, dynamic=True) for layer in self.layers]
        before = [vars(layer).get("forward") for layer in self.layers]
        try:
            for layer, compiled in zip(self.layers, self._compiled, strict=True):
                layer.forward = compiled
            with torch._dynamo.config.patch(suppress_errors=True):
                yield
        finally:
            for layer, forward in zip(self.layers, before, strict=True):
                del layer.forward
                if forward is not None:
                    layer.forward = forward


def decoder_layers(policy: Any) -> list[Any]:
    """The modules of a causal LM that repeat, in order; none if they cannot be told."""
    count = policy.config.get_text_config().num_hidden_layers
    for module in policy.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return list(module)
    return []


ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
"""Kinds of layers whose tokens see others through an attention function alone."""


def choose_attention(
    model: Any, *, device: torch.device, half_precision: bool, wanted: str = "auto"
) -> Attention:
    """Decide once, at construction, how the sequences of an unwrapped model are laid out.

    `wanted` is "packed" or "padded" to insist, "auto" to choose.
    """
    if wanted == "padded":
        return Attention("padded", "update_layout='padded'")
    current = str(model.config._attn_implementation or "")
    flash = "flash" in current and device.type == "cuda" and half_precision
    obstacle = _obstacle(model, takes_windows=flash)
    if obstacle is None and flash:
        return Attention("packed", f"{current} takes sequences of any length")
    if obstacle is None and device.type == "cuda":
        obstacle = _kernel_obstacle(device, half_precision)
    if obstacle is None and device.type != "cuda" and wanted != "packed":
        obstacle = f"no variable-length attention on {device.type}"
    if obstacle is None:
        return Attention("packed", "variable-length attention", PACKED)
    if wanted == "packed":
        raise ACPOError(f"update_layout='packed' is not possible: {obstacle}; use 'auto'")
    return Attention("padded", obstacle)


def _kernel_obstacle(device: torch.device, half_precision: bool) -> str | None:
    """Why the kernel cannot run here; None if it can."""
    if not half_precision:
        return "variable-length attention needs bfloat16 (bf16=True)"
    if not torch.cuda.is_available():  # planning for another machine
        return None
    if not torch.backends.cuda.is_flash_attention_available():
        return f"torch {torch.__version__} was built without flash attention"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "variable-length attention needs an Ampere GPU or newer"
    return None


def _obstacle(model: Any, *, takes_windows: bool) -> str | None:
    """Why a model's sequences cannot be packed; None if they can.

    `takes_windows`: whether the attention function knows windows, caps and dropout itself.
    """
    config = model.config.get_text_config()
    adapters = getattr(model, "peft_config", {}).values()
    if any(getattr(adapter, "alora_invocation_tokens", None) for adapter in adapters):
        return "an aLoRA adapter looks for its invocation once per row"
    if takes_windows:
        why = unusual_layers(config, ATTENTION_LAYERS)
    else:
        why = unusual_attention(model)
        if getattr(config, "attention_dropout", 0.0) or getattr(config, "attn_pdrop", 0.0):
            why = why or "drops attention weights; set attention_dropout=0 to pack"
        if (head_dim := widest(config, "head_dim")) > 256:
            why = why or f"has heads of {head_dim} dimensions; the kernel takes up to 256"
    return why and f"{type(model).__name__} {why}"
