#!/usr/bin/env bash
# One machine's part in a Ray cluster: run on every machine with the head's address, the head first.
#
#   ray-start.sh 10.0.0.1          # joins, or becomes the head where 10.0.0.1 is this machine's own
#   NODES=8 qwen3-8b-base.sh       # on the head, once `ray status` counts all GPUs
#   ray stop                       # on every machine, afterwards
#
# The environment, the model and the data have to be at the same path everywhere.
set -euo pipefail

head=${1:?usage: ray-start.sh HEAD_ADDRESS}
port=${RAY_PORT:-6379}
if hostname -I | tr ' ' '\n' | grep -qxF "$head"; then
  ray start --head --node-ip-address="$head" --port="$port" --num-gpus="${GPUS:-8}"
else
  ray start --address="$head:$port" --num-gpus="${GPUS:-8}"
fi
