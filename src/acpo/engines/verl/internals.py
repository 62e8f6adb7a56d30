"""What the plugin leans on in verl beyond its interface, checked where an engine is extended.

Names that are imported speak for themselves. These are the others: methods that are overridden or
called, their arguments, and keys that their bodies write.
"""

import inspect
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from acpo.errors import ACPOError

BATCH: dict[str, tuple[str, ...]] = {
    "forward_backward_batch": ("data", "loss_function", "forward_only")
}
FSDP: dict[str, tuple[str, ...]] = BATCH | {
    "prepare_model_inputs": (
        *('"input_ids_rmpad_rolled"', '"temperature_rmpad"', '"temperature"', '"pad_size"'),
    ),
    "prepare_model_outputs": (
        *("output", "output_args", "micro_batch", "logits_processor_func"),
        *('"log_probs"', '"entropy"'),
    ),
    "_gather_and_unpad_packed": ("pad_size",),
}
MEGATRON: dict[str, tuple[str, ...]] = BATCH | {
    "_lm_head_logits_processor": (
        *("logits", "label", "temperature", "logits_processor_func"),
        *('"log_probs"', '"entropy"'),
    ),
}
LOSS = "partial(ppo_loss, config="
"""How verl's worker tells an engine which actor it trains."""


def check_internals(engine: type, leaned_on: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse a verl in which a method, an argument or a (quoted) key is gone from its engine."""
    missing = []
    for name, words in leaned_on.items():
        method = getattr(engine, name, None)
        if method is None:
            missing.append(f"{engine.__name__}.{name}")
            continue
        arguments, body = inspect.signature(method).parameters, inspect.getsource(method)
        gone = [word for word in words if word not in (body if '"' in word else arguments)]
        missing += [f"{word} of {engine.__name__}.{name}" for word in gone]
    workers = find_spec("verl.workers.engine_workers")
    if workers is None or LOSS not in Path(str(workers.origin)).read_text():
        missing.append(f"{LOSS}...) of verl.workers.engine_workers")
    if missing:
        raise ACPOError(
            f"verl {version('verl')} has no {missing[0]}, which acpo.verl leans on (docs/verl.md "
            "lists such names); pip install verl==0.9.1"
        )
