#!/usr/bin/env bash
MODEL=${MODEL:-Qwen/Qwen3-8B-Base}
. "$(dirname "$0")/common.sh"
