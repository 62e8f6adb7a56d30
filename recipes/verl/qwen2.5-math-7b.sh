#!/usr/bin/env bash
MODEL=${MODEL:-Qwen/Qwen2.5-Math-7B}
. "$(dirname "$0")/common.sh"
