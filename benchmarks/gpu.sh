#!/usr/bin/env bash
# What of results/ takes a GPU, measured anew: part after part, each alone on the machine.
#
#   MODEL=models/Qwen2.5-Coder-0.5B-Instruct bash benchmarks/gpu.sh            every part
#   bash benchmarks/gpu.sh head update                                         these
#
# A part writes its file and its log to $OUT (runs/gpu). One that fails, or takes longer than its
# limit, is named at the end and stops no other. $PYTHON is the Python of an environment with a CUDA
# build of torch, TRL and pytest; $VERL_PYTHON one with verl. Without a hub, GSM8K,
# GSM8K_TEST and MATH500 name the data of traces, STUDY another study's file, and STUDY_OPTIONS what it says to add.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
VERL_PYTHON=${VERL_PYTHON:-$PYTHON}
OUT=${OUT:-runs/gpu}
MODEL=${MODEL:-Qwen/Qwen2.5-Coder-0.5B-Instruct}
STUDY=${STUDY:-recipes/studies/qwen2.5-0.5b-gsm8k.yaml}
STUDY_SECONDS=${STUDY_SECONDS:-1200}
export PYTHONPATH=src:tests:benchmarks${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$OUT"
failed=()

# part SECONDS NAME COMMAND...: under a limit, into a log; a name may have several commands.
part() {
  local limit=$1 name=$2 started=$SECONDS
  shift 2
  if timeout "$limit" "$@" >>"$OUT/$name.log" 2>&1; then
    echo "$name: $((SECONDS - started)) s"
  else
    echo "$name: exit $? after $((SECONDS - started)) s, see $OUT/$name.log"
    failed+=("$name")
  fi
}

head() { part 240 head "$PYTHON" benchmarks/head.py --out "$OUT/head_h200.json"; }

update() {
  part 420 update "$PYTHON" benchmarks/update.py --out "$OUT/update_trl_h200.json"
  local prompt
  for prompt in 1 100; do # how much packs that share a prompt's prefix could save at most
    part 60 update "$PYTHON" benchmarks/update.py --without-trl --variants paper \
      --prompt "$prompt" --out "$OUT/update_prompt_$prompt.json"
  done
}

step() {
  part 300 step "$PYTHON" benchmarks/step.py --engines trl-generate acpo-static \
    --out "$OUT/step.json"
}

sampling() { part 200 sampling "$PYTHON" benchmarks/sampling.py --out "$OUT/sampling.json"; }

verl() {
  local shared=(--work "$OUT/verl" --model "$MODEL" --out "$OUT/verl_gpu.json")
  part 120 verl "$PYTHON" benchmarks/verl_gpu.py rollout "${shared[@]}"
  part 240 verl "$VERL_PYTHON" benchmarks/verl_gpu.py verl "${shared[@]}"
  part 120 verl "$PYTHON" benchmarks/verl_gpu.py trl "${shared[@]}"
}

tests() { part 600 tests make test-gpu PYTHON="$PYTHON"; }

trace() {
  part 200 trace "$PYTHON" -m acpo trace "$MODEL" --task gsm8k ${GSM8K:+--data "$GSM8K"} \
    --n 128 --group 8 --max-tokens 400 --output "$OUT/trace"
  part 120 trace "$PYTHON" -m acpo annotate propose "$OUT/trace" --annotator arithmetic \
    -o "$OUT/annotations.jsonl"
  part 120 trace "$PYTHON" -m acpo diagnose blame "$OUT/trace" \
    --annotations "$OUT/annotations.jsonl" --output "$OUT/blame"
}

# The paper's figures on a real model: traces of what ACPO makes of it, every 50 updates.
rl() {
  local task step model
  declare -A file=([gsm8k]=${GSM8K_TEST:-} [math500]=${MATH500:-})
  part 600 rl "$PYTHON" -m acpo train recipes/qwen2.5-0.5b-gsm8k.yaml --method acpo \
    --model_name_or_path "$MODEL" ${GSM8K:+--data "$GSM8K" --held_out_data "$GSM8K_TEST"} \
    --save_strategy steps --save_steps 50 --save_only_model true --output_dir "$OUT/rl"
  for task in gsm8k math500; do
    for step in 0 50 100 150 200; do
      model=$OUT/rl/checkpoint-$step
      [ "$step" = 0 ] && model=$MODEL
      part 100 rl "$PYTHON" -m acpo trace "$model" --task "$task" ${file[$task]:+--data "${file[$task]}"} \
        --template boxed --n 64 --max-tokens 640 --batch-size 256 --step "$step" --output "$OUT/trace-$task"
    done
    part 120 rl "$PYTHON" -m acpo diagnose all "$OUT/trace-$task" --runs "$OUT/rl" --output "$OUT/diagnose-$task"
  done
}

study() {
  part $((STUDY_SECONDS + 200)) study "$PYTHON" -m acpo compare "$STUDY" --workers "${WORKERS:-4}" --only "${ONLY:-*}" \
    --stop-after "$STUDY_SECONDS" --output "$OUT/study" ${STUDY_OPTIONS:-}
}

[ $# -gt 0 ] || set -- head update step sampling verl tests trace rl study
for name in "$@"; do "$name"; done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
