"""Make the start policies of study L: `python benchmarks/law_starts.py 0.1m --out runs/law`.

One checkpoint per size and task is trained from nothing on sound facts (0.1M on chains: the
quickstart's); every start goes on from there, taught the tables of `law_minds` at its own
temperature, with as many corrupted facts as hold the accuracy. What came out is measured by
sampling and written to `start.json` beside the weights; a start that misses accuracy or entropy is
taught again with its aim moved by as much as it missed.

The same command gives the same weights on the same kind of machine. Weights are rounded to
bfloat16, which makes them half as large to carry (`--pack`). What is there already is kept.
"""

import argparse
import json
import os
import tarfile
import time
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from chain_model import chain_tokenizer, tiny_model
from law_minds import EOS, MINDS, Mind, find_mind
from transformers import AutoModelForCausalLM

import acpo.tasks
from acpo.objectives.shaping import score_variation
from acpo.tasks.registry import get_task

HERE = Path(__file__).resolve().parent
QUICKSTART = Path(acpo.tasks.__file__).parent / "checkpoints" / "chain"
SIZES = {"0.1m": (64, 2), "1m": (128, 5), "10m": (320, 8)}
"""Width and layers."""
ENTROPIES = (0.02, 0.05, 0.1, 0.2, 0.5)
ACCURACY, NEAR, NEAR_ENTROPY = 0.40, 0.05, 0.2
"""Wanted, how far off it may be, and how far off the entropy may be, relative to what is wanted."""
TASKS = {"chain": "chain?steps=6", "carry": f"{HERE / 'law_carry.py'}:carry"}
PROBLEMS, GROUP = 256, 8
"""What a start is measured on."""


@dataclass(frozen=True)
class Teaching:
    """How long and how fast a model is taught: at most so many updates for its base, then rounds.

    Attributes:
        base: most updates from nothing; it ends when the model is `ENOUGH` nats per token off.
        start: updates of a round.
        rate: of the base; a round begins with half of it and ends at 0.
    """

    base: int
    start: int
    rate: float
    batch: int = 128
    rounds: int = 24


TEACHING = {
    "0.1m": Teaching(base=4000, start=80, rate=3e-3),
    "1m": Teaching(base=3000, start=200, rate=1e-3),
    "10m": Teaching(base=3000, start=200, rate=4e-4),
}
ENOUGH, WARM_UP, LOOK_BACK = 0.01, 50, 20


def teach(
    model: Any, mind: Mind, *, updates: int, rate: float, batch: int, seed: int, to_zero: bool
) -> float:
    """Train towards a mind's own distributions; returns how far off it ends, in nats per token.

    Args:
        model: changed in place.
        mind: what it learns.
        updates: at most; with `to_zero` exactly.
        rate: after a warm-up.
        batch: completions per update.
        seed: of the problems.
        to_zero: lower the rate to 0 over the updates; else keep it, and end once `ENOUGH`.
    """
    rng = np.random.default_rng([seed, updates])
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    gaps: list[float] = []
    for update in range(updates):
        fade = 1 - update / updates if to_zero else 1.0
        optimizer.param_groups[0]["lr"] = rate * min((update + 1) / WARM_UP, 1.0, fade)
        prompt, page = mind.draw(batch, rng)
        chances = torch.tensor(np.stack(page.chances, 1), dtype=torch.float32)  # [B, T, V]
        ids = torch.tensor(np.concatenate([prompt, np.stack(page.drawn[:-1], 1)], 1))
        ids, chances = ids.to(model.device), chances.to(model.device)
        logits = model(input_ids=ids).logits[:, prompt.shape[1] - 1 :]
        gap = torch.nn.functional.kl_div(
            logits.log_softmax(-1).flatten(0, 1), chances.flatten(0, 1), reduction="batchmean"
        )
        gap.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        gaps.append(gap.item())
        if not to_zero and update >= WARM_UP and fmean(gaps[-LOOK_BACK:]) < ENOUGH:
            break
    return fmean(gaps[-LOOK_BACK:])


@torch.no_grad()
def sample(model: Any, prompts: torch.Tensor, length: int) -> torch.Tensor:
    """Completions `[B, length]` at temperature 1, EOS and padding included."""
    known = model(input_ids=prompts, use_cache=True)
    drawn = []
    alive = torch.ones(len(prompts), dtype=torch.bool, device=prompts.device)
    for _ in range(length):
        chances = known.logits[:, -1].float().softmax(-1).cpu()
        token = torch.multinomial(chances, 1).to(prompts.device)
        drawn.append(torch.where(alive[:, None], token, 0))
        alive = alive & (token[:, 0] != EOS)
        known = model(input_ids=token, past_key_values=known.past_key_values, use_cache=True)
    return torch.cat(drawn, 1)


@torch.no_grad()
def measure(model: Any, task: str, *, seed: int) -> dict[str, float]:
    """Accuracy, entropy, mean delta, and the coefficient of variation of n^(1/2) within groups.

    n is the squared norm of a completion's score in logit space, the sum of 1 - 2 p_y + Σ p².
    """
    judge, tokenizer = get_task(TASKS[task]), chain_tokenizer()
    rows = list(islice(judge.problems(judge.held_out_seed), PROBLEMS))
    encoded = tokenizer([row["problem"] for row in rows for _ in range(GROUP)])["input_ids"]
    prompts = torch.tensor(encoded, device=model.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokens = sample(model, prompts, 34)
    mask = (tokens != 0).float()
    width = prompts.shape[1]
    logits = model(input_ids=torch.cat([prompts, tokens], 1)).logits[:, width - 1 : -1]
    logp = logits.float().log_softmax(-1)
    p = logp.exp()
    own = p.gather(-1, tokens[..., None])[..., 0]
    norms = ((1 - 2 * own + p.square().sum(-1)) * mask).sum(1)
    texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    right = [judge.grader(text, rows[place // GROUP]) for place, text in enumerate(texts)]
    found = {
        "accuracy": sum(right) / len(right),
        "entropy": float((-(p * logp).sum(-1) * mask).sum() / mask.sum()),
        "delta": float(((1 - p.amax(-1)) * mask).sum() / mask.sum()),
        "score_variation": float(score_variation(norms, GROUP)),
    }
    return {name: round(value, 4) for name, value in found.items()}


def make_base(size: str, task: str, folder: Path, device: str, seed: int) -> Any:
    """The checkpoint all starts of a size and task come from; made once."""
    width, layers = SIZES[size]
    if (size, task) == ("0.1m", "chain"):
        return AutoModelForCausalLM.from_pretrained(QUICKSTART, dtype=torch.float32).to(device)
    model = tiny_model(hidden_size=width, layers=layers, seed=seed).to(device)
    kept = folder / f"base-{size}-{task}.pt"
    if not kept.is_file():
        how, sound = TEACHING[size], MINDS[task](0.3, 0)
        gap = teach(
            model,
            sound,
            updates=how.base,
            rate=how.rate,
            batch=how.batch,
            seed=seed,
            to_zero=False,
        )
        print(f"{kept.stem}: {model.num_parameters():,} parameters, {gap:.4f} nats off", flush=True)
        torch.save(model.state_dict(), kept)
    model.load_state_dict(torch.load(kept, weights_only=True, map_location=device))
    return model


def make_start(
    size: str, task: str, entropy: float, folder: Path, *, device: str = "cpu", seed: int = 0
) -> dict[str, Any]:
    """One start policy in a folder of its own; returns its `start.json`."""
    place = folder / f"{size}-{task}-e{entropy:g}"
    if (place / "start.json").is_file():
        return json.loads((place / "start.json").read_text())
    began, how = time.process_time(), TEACHING[size]
    model = make_base(size, task, folder, device, seed)
    rounds = approach(model, task, entropy, how, seed)
    found = rounds[-1]["found"]
    record = {
        "size": size,
        "task": task,
        "wanted": {"entropy": entropy, "accuracy": ACCURACY},
        "held": is_near(found, entropy),
        **found,
        "parameters": model.num_parameters(),
        "seed": seed,
        "teaching": vars(how),
        "rounds": rounds,
        "torch": torch.__version__,
        "device": device,
        "cpu_seconds": round(time.process_time() - began, 1),
    }
    write_start(model, place, record)
    return record


def approach(
    model: Any, task: str, entropy: float, how: Teaching, seed: int
) -> list[dict[str, Any]]:
    """Teach a model, in place, until accuracy and entropy are near; what each round found."""
    aim = {"entropy": entropy, "accuracy": ACCURACY}
    rounds: list[dict[str, Any]] = []
    for number in range(how.rounds):
        mind = find_mind(task, seed=seed, nearest=number > 0, **aim)
        gap = teach(
            model,
            mind,
            updates=how.start,
            rate=how.rate / 2,
            batch=how.batch,
            seed=seed + 1 + number,
            to_zero=True,
        )
        found = measure(round_weights(model), task, seed=seed)
        rounds.append(
            {
                **aim,
                "temperature": round(mind.temperature, 4),
                "corrupted_facts": mind.corrupted,
                "nats_off": round(gap, 5),
                "found": found,
            }
        )
        if is_near(found, entropy):
            break
        aim["accuracy"] = min(max(aim["accuracy"] + ACCURACY - found["accuracy"], 0.2), 0.6)
        aim["entropy"] *= min(max(entropy / found["entropy"], 0.6), 1.6)
    return rounds


def is_near(found: dict[str, float], entropy: float) -> bool:
    """Whether a start is what was wanted."""
    off = abs(found["entropy"] / entropy - 1)
    return abs(found["accuracy"] - ACCURACY) <= NEAR and off <= NEAR_ENTROPY


def round_weights(model: Any) -> Any:
    """The model with weights that bfloat16 can hold, kept in float32."""
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_(weights.bfloat16().float())
    return model


def write_start(model: Any, place: Path, record: dict[str, Any]) -> None:
    model.generation_config.max_length = None
    model.cpu().save_pretrained(place)
    chain_tokenizer().save_pretrained(place)
    (place / "start.json").write_text(json.dumps(record, indent=1) + "\n")


def pack(folder: Path, target: Path) -> None:
    """Every start in one archive; bfloat16's empty halves make it half its size."""
    with tarfile.open(target, "w:gz") as archive:
        for record in sorted(folder.glob("*/start.json")):
            archive.add(record.parent, record.parent.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="*", choices=[*SIZES, []], help="none: only --pack")
    parser.add_argument("--out", type=Path, default=Path("runs/law"))
    parser.add_argument("--task", choices=TASKS, default="chain")
    parser.add_argument("--entropies", type=float, nargs="+", default=ENTROPIES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="part of what makes it repeatable")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=float, default=1.0, help="share of the teaching, to try")
    parser.add_argument("--pack", type=Path, help="write all starts to this .tar.gz")
    arguments = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.enable_mem_efficient_sdp(False)  # its gradient is not repeatable
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for size in arguments.sizes:
        how = TEACHING[size]
        base, start = (max(int(n * arguments.updates), 2) for n in (how.base, how.start))
        TEACHING[size] = replace(how, base=base, start=start)
        for entropy in arguments.entropies:
            found = make_start(
                size,
                arguments.task,
                entropy,
                arguments.out,
                device=arguments.device,
                seed=arguments.seed,
            )
            print(
                f"{size} {arguments.task} entropy {entropy:g}: "
                f"{'held' if found['held'] else 'NOT HELD'}, accuracy {found['accuracy']:.3f}, "
                f"entropy {found['entropy']:.3f}, delta {found['delta']:.4f}, variation "
                f"{found['score_variation']:.2f}, {found['cpu_seconds']:.0f} CPU seconds",
                flush=True,
            )
    if arguments.pack:
        pack(arguments.out, arguments.pack)


if __name__ == "__main__":
    main()
