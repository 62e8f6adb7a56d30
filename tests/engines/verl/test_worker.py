"""verl's own actor worker, built from our recipes: it updates, and as `ACPOTrainer` would."""

import pytest
import torch

from engines import two_engines
from engines.tiny import tiny_tokenizer
from engines.verl.launch import run_ranks
from engines.verl.recipes import ROWS, arguments

ACTOR = "actor_rollout_ref.actor"
ON_A_CPU = [
    f"{ACTOR}.fsdp_config.model_dtype=fp32",
    f"{ACTOR}.fsdp_config.use_torch_compile=False",
    f"{ACTOR}.fsdp_config.dtype=float32",
    f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype=fp32",
    f"+{ACTOR}.fsdp_config.mixed_precision.reduce_dtype=fp32",
    f"+{ACTOR}.fsdp_config.mixed_precision.buffer_dtype=fp32",
    "+actor_rollout_ref.model.override_config.attn_implementation=eager",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",
]
# One step of plain descent at rate 1: the weights move by the gradient.
GRADIENT = [
    f"{ACTOR}.optim.optimizer=SGD",
    f"{ACTOR}.optim.lr=1.0",
    f"{ACTOR}.optim.weight_decay=0.0",
    f"{ACTOR}.optim.clip_grad=1e9",
]
# A random policy is so uncertain that GTPO would filter every completion.
MORE = {
    "gtpo": [
        f"{ACTOR}.policy_loss._target_=acpo.verl.ACPOPolicyLossConfig",
        f"+{ACTOR}.policy_loss.options.initial_entropy=1.0",
    ]
}
SCRIPT = "qwen3-8b-base.sh"


def save(folder, weights=None):
    two_engines.model(weights).save_pretrained(folder)
    tiny_tokenizer(chat=True).save_pretrained(folder)
    return f"actor_rollout_ref.model.path={folder}"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worker")
    jobs = {}
    for method in ROWS:
        jobs[f"recipe {method}"] = {
            "overrides": [
                *arguments(SCRIPT, folder, METHOD=method),
                *ON_A_CPU,
                save(folder / "model"),
                f"{ACTOR}.optim.lr=1e-2",
                "actor_rollout_ref.rollout.n=4",
                *MORE.get(method, []),
            ],
            "tensors": two_engines.load("acpo"),
            "settings": {"temperature": 1.0, "mini_batch_size": 4, "global_batch_size": 4},
        }
    for method in two_engines.METHODS:
        case = two_engines.load(method)
        jobs[f"fixture {method}"] = {
            "overrides": arguments(SCRIPT, folder, METHOD=method),
            "tensors": case,
            "settings": {
                "temperature": two_engines.TEMPERATURE,
                "mini_batch_size": 8,
                "global_batch_size": 8,
            },
        }
        model = save(folder / method, case["weights"])
        jobs[f"fixture {method}"]["overrides"] += [*ON_A_CPU, *GRADIENT, model]
    torch.save(jobs, folder / "jobs.pt")
    return run_ranks("actor_worker", folder, 1)[1][0]


@pytest.mark.parametrize("method", ROWS)
def test_a_recipe_makes_two_updates(results, method):
    result = results[f"recipe {method}"]
    assert len(result["metrics"]["grad_norm"]) == 2
    assert all(0 < norm < float("inf") for norm in result["metrics"]["grad_norm"])
    assert any(not torch.equal(result["after"][k], v) for k, v in result["before"].items())
    assert ("actor/acpo/aligned" in result["metrics"]) == (method != "sapo")


@pytest.mark.parametrize("method", two_engines.METHODS)
def test_one_batch_two_engines(results, method):
    case, result = two_engines.load(method), results[f"fixture {method}"]
    loss = torch.tensor(result["metrics"]["loss"], dtype=torch.float64)
    torch.testing.assert_close(loss[0], case["loss"], rtol=1e-4, atol=1e-4)
    moved = {name: result["before"][name] - after for name, after in result["after"].items()}
    assert moved.keys() == case["gradient"].keys()
    norm = torch.cat([g.flatten() for g in case["gradient"].values()]).norm()
    for name, gradient in case["gradient"].items():
        torch.testing.assert_close(moved[name], gradient, rtol=1e-4, atol=1e-4)
        assert (moved[name] - gradient).norm() < 1e-4 * norm
