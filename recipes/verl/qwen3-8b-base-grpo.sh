#!/usr/bin/env bash
METHOD=grpo
MODEL=${MODEL:-Qwen/Qwen3-8B-Base}
. "$(dirname "$0")/common.sh"
