#!/usr/bin/env bash
METHOD=acpo_no_routing
MODEL=${MODEL:-Qwen/Qwen2.5-Math-7B}
. "$(dirname "$0")/common.sh"
