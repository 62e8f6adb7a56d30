#!/usr/bin/env bash
METHOD=sapo
MODEL=${MODEL:-Qwen/Qwen2.5-Math-7B}
. "$(dirname "$0")/common.sh"
