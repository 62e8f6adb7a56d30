"""Whether a model's logits are its output head applied to its last hidden state."""

from typing import Any

import torch
from torch import Tensor

from acpo.errors import ACPOError
from acpo.head.lookup import language_model_head

TOLERANCE = {torch.float32: 5e-3, torch.float64: 1e-6}
"""Relative error of logits by dtype: TF32 products are good to 1e-3. Others: 2e-2."""


@torch.no_grad()
def probe_head(model: Any) -> None:
    """Raise unless our head gives the logits the model itself gives, on a few tokens.

    Caps, scales and layers between the last hidden state and the logits go by many names; what
    counts is whether the numbers agree.
    """
    if any(parameter.is_meta for parameter in model.parameters()):
        return
    ids = probe_ids(model, 8)
    training = model.training
    model.eval()
    try:
        own = model(input_ids=ids).logits
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        head = language_model_head(model)
        ours = head.logits(hidden.to(head.weight.dtype))
    finally:
        model.train(training)
    if not torch.isfinite(own).all():
        raise ACPOError(
            f"{type(model).__name__} gives logits that are not finite on {ids.shape[1]} tokens; "
            "its weights are damaged"
        )
    error = torch.inf
    if own.shape == ours.shape:
        own, ours = own.float(), ours.to(own.device).float()
        error = float((own - ours).norm() / own.norm().clamp_min(1e-30))
    tolerance = TOLERANCE.get(hidden.dtype, 2e-2)
    if error > tolerance:
        raise ACPOError(
            f"the logits of {type(model).__name__} are not its output head applied to its last "
            f"hidden state: they differ by {error:.2g} (relative; {tolerance:g} is rounding). The "
            "model caps, scales or transforms them in a way acpo does not know: every probability "
            "and update would be wrong"
        )


def probe_ids(model: Any, count: int) -> Tensor:
    """Token ids from the middle of the vocabulary, where ordinary words are."""
    vocab = model.config.get_text_config().vocab_size
    ids = torch.linspace(0.1 * vocab, 0.6 * vocab, count).long().clamp(max=vocab - 1)
    return ids[None].to(model.get_input_embeddings().weight.device)
