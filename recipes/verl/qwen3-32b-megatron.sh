#!/usr/bin/env bash
# Beyond FSDP: tensor parallelism over the vocabulary, 4 machines with 8 GPUs. The paper trains
# nothing of this size; the settings are verl's own with the paper's objective.
MODEL=${MODEL:-Qwen/Qwen3-32B}
NODES=${NODES:-4}
set -- model_engine=megatron \
  actor_rollout_ref.actor.strategy=megatron \
  actor_rollout_ref.actor.megatron.tensor_model_parallel_size=8 \
  actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=1 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
  "$@"
. "$(dirname "$0")/common.sh"
