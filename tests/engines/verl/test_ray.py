"""The plugin inside a Ray worker, as verl's workers load it."""

import os

import pytest
import ray

from engines.verl.launch import ENVIRONMENT


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=100_000_000,
        runtime_env={"env_vars": ENVIRONMENT},
        logging_level="ERROR",
    )
    yield
    ray.shutdown()


def test_a_worker_gets_the_extended_engine(cluster):
    @ray.remote(num_cpus=1)
    def on_a_worker():
        import sys

        import verl  # noqa: F401

        by_entry_point = "acpo.verl" in sys.modules
        light = "verl.workers.engine" not in sys.modules
        from verl.workers.config import FSDPActorConfig, PolicyLossConfig

        FSDPActorConfig(
            strategy="fsdp2",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            loss_agg_mode="seq-mean-token-mean",
            policy_loss=PolicyLossConfig(loss_mode="acpo"),
        )
        from verl.workers.engine import EngineRegistry

        engine = EngineRegistry.get_engine_cls("language_model", "fsdp2")
        return by_entry_point, light, engine.__name__

    assert ray.get(on_a_worker.remote()) == (True, True, "ACPOFSDPEngineWithLMHead")
