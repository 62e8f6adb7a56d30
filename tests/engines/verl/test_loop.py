"""verl's trainer from start to end on a CPU: Ray, its v1 trainer, queue, agent loop and rewards.

The rollout server samples by transformers instead of vLLM, which needs a GPU; everything else is
verl's, started by the manual's command.
"""

import math
import os
import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engines.tiny import WORDS, tiny_tokenizer
from engines.verl.launch import ENVIRONMENT, wait_for
from engines.verl.recipes import manual
from engines.verl.test_worker import ACTOR, ON_A_CPU

STEPS = 3
SMALL = [
    "data.train_batch_size=8",
    "data.max_prompt_length=8",
    "data.max_response_length=8",
    "data.dataloader_num_workers=0",
    "data.filter_overlong_prompts=False",
    f"{ACTOR}.ppo_mini_batch_size=4",
    f"{ACTOR}.ppo_max_token_len_per_gpu=512",
    f"{ACTOR}.optim.lr=1e-2",
    "actor_rollout_ref.rollout.name=cpu",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.max_model_len=32",
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "reward.num_workers=1",
    "reward.custom_reward_function.path=pkg://engines.verl.cpu_rollout",
    "reward.custom_reward_function.name=small_numbers",
    "trainer.device=cpu",
    "trainer.n_gpus_per_node=1",
    "trainer.logger=[console]",
    f"trainer.total_training_steps={STEPS}",
    "trainer.val_before_train=False",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.resume_mode=disable",
    "ray_kwargs.ray_init.num_cpus=8",
    "+ray_kwargs.ray_init.resources.NPU=1",
    "+ray_kwargs.ray_init.include_dashboard=False",
    "+ray_kwargs.ray_init.object_store_memory=200000000",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
]


def save_task(folder):
    """A random model, and prompts whose reward is the share of small numbers in the response."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tiny_tokenizer(chat=True).save_pretrained(folder / "model")
    rows = [
        {
            "data_source": "small_numbers",
            "prompt": [{"role": "user", "content": f"w{i} w{i + 1} w3"}],
            "ability": "none",
            "reward_model": {"style": "rule", "ground_truth": "20"},
            "extra_info": {"index": i},
        }
        for i in range(8 * STEPS)
    ]
    for name in ("train", "validation"):
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    return [
        f"actor_rollout_ref.model.path={folder / 'model'}",
        f"data.train_files={folder / 'train.parquet'}",
        f"data.val_files={folder / 'validation.parquet'}",
        f"trainer.default_local_dir={folder / 'checkpoints'}",
    ]


def logged(log, name):
    return [float(x) for x in re.findall(rf"{re.escape(name)}:([-\d.e+]+|nan)", log)]


@pytest.mark.slow
def test_three_steps_of_verls_trainer(tmp_path):
    overrides = [*manual(), *ON_A_CPU, *SMALL]
    modules = "engines.verl.cpu_platform,engines.verl.cpu_rollout"
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *overrides, *save_task(tmp_path)]
    environment = {**os.environ, **ENVIRONMENT, "VERL_USE_EXTERNAL_MODULES": modules}
    file = tmp_path / "log"
    with file.open("w") as output:
        trainer = subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT
        )
    try:  # Ray's own processes never rest, so that only the log shows progress
        (code,) = wait_for([trainer], lambda: file.stat().st_size, stalled=900, limit=math.inf)
    finally:
        trainer.kill()
    log = file.read_text()
    assert code == 0, log[-6000:]
    rewards = logged(log, "critic/score/mean")
    assert len(rewards) == STEPS
    assert all(0 < reward < 1 for reward in rewards)
    assert rewards[-1] > rewards[0]
    assert all(0 < share < 1 for share in logged(log, "actor/acpo/aligned"))
    assert len(logged(log, "actor/grad_norm")) == STEPS
