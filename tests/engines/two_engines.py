"""One mini-batch for two training frameworks, as a file: neither environment needs the other.

The file holds, for some rows of the table, the second update of a rollout by `ACPOTrainer`: the
weights before it, its sequences, old log-probabilities and advantages, its loss and its gradient.
`python -m engines.two_engines` (with tests/ on the path) writes it anew.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM, TrainerCallback

FILE = Path(__file__).with_name("two_engines.safetensors")
METHODS = ("acpo", "acpo_no_routing", "shannon", "8020", "sapo")
TEMPERATURE = 0.8
CONFIG = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "eos_token_id": 1,
}

Case = dict[str, Tensor]


def model(weights: Case | None = None) -> Qwen3ForCausalLM:
    """The tiny model, with logits spread enough that tokens differ in confidence."""
    torch.manual_seed(0)
    made = Qwen3ForCausalLM(Qwen3Config(**CONFIG, attn_implementation="eager"))
    with torch.no_grad():
        made.get_output_embeddings().weight.mul_(20.0)
    if weights is not None:
        made.load_state_dict(weights)
    return made


def load(method: str) -> dict[str, Any]:
    """A row's update: `weights/...`, `gradient/...` as dictionaries, the rest as tensors."""
    case: dict[str, Any] = {"weights": {}, "gradient": {}}
    for name, value in load_file(FILE).items():
        row, kind, *rest = name.split("/")
        if row == method:
            if rest:
                case[kind][rest[0]] = value
            else:
                case[kind] = value
    return case


class SecondUpdate(TrainerCallback):
    """Keeps what the second optimizer step of a trainer sees."""

    trainer: Any = None

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        if state.global_step == 1:
            self.case = {
                "weights": {k: v.detach().clone() for k, v in model.state_dict().items()},
                "gradient": {k: p.grad.clone() for k, p in model.named_parameters()},
                "inputs": dict(self.trainer._buffered_inputs[0]),
            }


def by_trainer(method: str, folder: Path) -> dict[str, Any]:
    """Two updates of one rollout by `ACPOTrainer`; the second."""
    from engines.tiny import build
    from engines.worker import fixed_rollout

    second = SecondUpdate()
    settings = {"method": method, "max_steps": 2, "num_iterations": 2, "learning_rate": 5e-3}
    settings |= {"temperature": TEMPERATURE, "shuffle_dataset": False}
    settings |= {"callbacks": [second], "rollout_func": fixed_rollout}
    second.trainer = trainer = build(folder, model(), **settings)
    trainer.train()
    inputs = second.case.pop("inputs")
    names = {
        "prompts": "prompt_ids",
        "prompt_mask": "prompt_mask",
        "responses": "completion_ids",
        "mask": "completion_mask",
        "old_logp": "old_per_token_logps",
        "advantages": "advantages",
    }
    loss = torch.tensor(trainer.state.log_history[1]["loss"], dtype=torch.float64)
    return second.case | {ours: inputs[theirs] for ours, theirs in names.items()} | {"loss": loss}


def flattened(case: dict[str, Any]) -> Case:
    flat: Case = {}
    for name, value in case.items():
        if isinstance(value, dict):
            flat |= {f"{name}/{inner}": tensor for inner, tensor in value.items()}
        else:
            flat[name] = value
    return flat


if __name__ == "__main__":
    tensors: Case = {}
    for row in METHODS:
        with tempfile.TemporaryDirectory() as scratch:
            case = flattened(by_trainer(row, Path(scratch)))
        tensors |= {f"{row}/{name}": value.contiguous() for name, value in case.items()}
    save_file(tensors, FILE)
    print(f"{FILE}: {FILE.stat().st_size} bytes")
