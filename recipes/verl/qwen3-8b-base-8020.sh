#!/usr/bin/env bash
METHOD=8020
MODEL=${MODEL:-Qwen/Qwen3-8B-Base}
. "$(dirname "$0")/common.sh"
