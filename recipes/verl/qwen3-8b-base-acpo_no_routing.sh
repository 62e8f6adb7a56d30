#!/usr/bin/env bash
METHOD=acpo_no_routing
MODEL=${MODEL:-Qwen/Qwen3-8B-Base}
. "$(dirname "$0")/common.sh"
