"""What a recipe's model scores before training, on one held-out file after the other.

    python benchmarks/start_accuracy.py recipes/qwen2.5-0.5b-gsm8k.yaml --task math \\
        --files data/chain_sum_3_3 data/math_levels_1_3 --out results/starts.json

Each name stands for NAME_train.jsonl and NAME_test.jsonl; other options are the recipe's. This is
how the second task of docs/protocol.md was chosen.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from environment import environment

from acpo.compare.execute import measured, release_memory
from acpo.train.launch import prepare
from acpo.train.recipe import read_recipe


def start(recipe: str, name: str, options: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        data = ["--data", f"{name}_train.jsonl", "--held_out_data", f"{name}_test.jsonl"]
        run = prepare(read_recipe(recipe, ["--output_dir", folder, *data, *options]))
        assert run.probe is not None
        found = measured(run.probe.measure(), run.probe.held_out["prompt"])
        logged = run.trainer.state.log_history[-1]
    lengths = {
        name: logged[f"eval_completions/{name}"] for name in ("mean_length", "clipped_ratio")
    }
    return {name: found[name] for name in ("value", "problems", "samples")} | lengths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recipe")
    parser.add_argument("--files", nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args, options = parser.parse_known_args()
    record: dict[str, Any] = {"environment": environment("torch", "transformers", "trl")}
    for name in args.files:
        record[Path(name).name] = start(args.recipe, name, options)
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(name, record[Path(name).name], flush=True)
        release_memory()


if __name__ == "__main__":
    main()
