# The paper's setting in verl's keys. Sourced by the scripts beside it, which set MODEL.
#
#   acpo data verl data/verl                           # once
#   recipes/verl/qwen3-8b-base.sh                      # one machine with 8 GPUs
#   METHOD=grpo recipes/verl/qwen3-8b-base.sh          # another row, an experiment of its own
#   recipes/verl/ray-start.sh HEAD_ADDRESS             # on every machine of a cluster, then on one:
#   NODES=8 recipes/verl/qwen3-8b-base.sh trainer.total_epochs=2   # any key of verl's at the end
set -euo pipefail

: "${MODEL:?a hub id or a folder}"
METHOD=${METHOD:-acpo}
DATA=${DATA:-data/verl}
NODES=${NODES:-1}
GPUS=${GPUS:-8}
PYTHON=${PYTHON:-python}

case $METHOD in
  dapo | 8020 | gtpo_entropy) AGGREGATION=token-mean ;;
  *) AGGREGATION=seq-mean-token-mean ;;
esac

args=(
  actor_rollout_ref.model.external_lib=acpo.verl
  actor_rollout_ref.actor.policy_loss.loss_mode="'$METHOD'" # 8020 is no number
  actor_rollout_ref.actor.loss_agg_mode="$AGGREGATION"
  actor_rollout_ref.actor.tau_pos=1.0
  actor_rollout_ref.actor.tau_neg=1.05

  algorithm.adv_estimator=acpo
  algorithm.use_kl_in_reward=False
  reward.custom_reward_function.path=pkg://acpo.verl

  data.train_files="$DATA/train.parquet"
  data.val_files="$DATA/validation.parquet"
  data.train_batch_size=128 # prompts
  data.max_prompt_length=2048
  data.max_response_length=8192
  data.filter_overlong_prompts=True

  actor_rollout_ref.model.path="$MODEL"
  actor_rollout_ref.model.use_remove_padding=True
  actor_rollout_ref.model.use_fused_kernels=False
  actor_rollout_ref.model.enable_gradient_checkpointing=True

  actor_rollout_ref.actor.strategy=fsdp2
  actor_rollout_ref.actor.ppo_mini_batch_size=16 # prompts: 8 updates of 128 responses
  actor_rollout_ref.actor.ppo_epochs=1
  actor_rollout_ref.actor.optim.lr=1e-6
  actor_rollout_ref.actor.use_dynamic_bsz=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=20480
  actor_rollout_ref.actor.use_kl_loss=False
  actor_rollout_ref.actor.entropy_coeff=0

  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.n=8
  actor_rollout_ref.rollout.temperature=1.0
  actor_rollout_ref.rollout.top_p=1.0
  actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6
  actor_rollout_ref.rollout.max_model_len=10240
  actor_rollout_ref.rollout.val_kwargs.n=8 # mean@8
  actor_rollout_ref.rollout.val_kwargs.do_sample=True
  actor_rollout_ref.rollout.val_kwargs.temperature=1.0

  trainer.nnodes="$NODES"
  trainer.n_gpus_per_node="$GPUS"
  trainer.total_epochs=1
  trainer.save_freq=16
  trainer.test_freq=16
  trainer.logger='["console","tensorboard"]'
  trainer.project_name=acpo
  trainer.experiment_name="$(basename "$MODEL")-$METHOD"
)

case $METHOD in
  gtpo | gtpo_entropy)
    # They compare the responses to one prompt, so a group has to stay in one mini-batch.
    args+=(trainer.use_v1=False trainer.balance_batch=False)
    ;;
esac
if [ "$METHOD" = gtpo ]; then
  args+=(algorithm.norm_adv_by_std_in_grpo=False)
fi
if [[ $MODEL == *Qwen2.5-Math-7B* ]]; then
  # Its configuration says 4096 positions; prompt and response need 10240.
  args+=(+actor_rollout_ref.model.override_config.max_position_embeddings=32768)
  export VLLM_ALLOW_LONG_MAX_MODEL_LEN=1
fi

exec "$PYTHON" -m verl.trainer.main_ppo "${args[@]}" "$@"
