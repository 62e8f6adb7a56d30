"""A whole RL loop with plain transformers: sample, judge, credit, update. No trainer framework.

    python examples/loop.py                       # the quickstart's model, a minute on a CPU
    python examples/loop.py --method grpo --steps 20

It stands between the ten-line loss and `ACPOTrainer`: everything a trainer does is here, once, in
the order it happens. What it leaves out is what makes training fast or safe on a large scale:
packs, sharding, checkpoints, several processes.
"""

import argparse
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from acpo.errors import ACPOError
from acpo.head import TokenTerms, fused_policy_loss, language_model_head
from acpo.objectives import Method, aggregation_weights, get_method, group_advantages
from acpo.tasks.chain import chain_problems, read_answer

START = files("acpo.tasks") / "checkpoints" / "chain"
NEW_TOKENS = 24
METHODS_HERE = "rows that look at one token or one sequence at a time"


@dataclass
class Rollout:
    """Completions of some prompts, `[B, L]` with prompts padded left and completions right."""

    ids: Tensor
    attended: Tensor
    sampled: Tensor  # [B, L], true at the tokens the policy wrote
    texts: list[str]


@torch.no_grad()
def sample(model: Any, tokenizer: Any, prompts: list[str], new_tokens: int) -> Rollout:
    """One completion of each prompt at temperature 1."""
    batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    batch = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
    settings = {"max_new_tokens": new_tokens, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
    pad = tokenizer.pad_token_id
    ids = model.generate(**batch, **settings, do_sample=True, pad_token_id=pad)
    width = batch["input_ids"].shape[1]
    written = ids[:, width:]
    ended = (written == tokenizer.eos_token_id).int()
    sampled = (ended.cumsum(1) - ended) == 0  # up to and with the first end
    texts = [
        tokenizer.decode(row[keep], skip_special_tokens=True)
        for row, keep in zip(written, sampled, strict=True)
    ]
    before = torch.zeros_like(batch["attention_mask"], dtype=torch.bool)
    attended = torch.cat([batch["attention_mask"].bool(), sampled], 1)
    return Rollout(ids, attended, torch.cat([before, sampled], 1), texts)


def hidden_states(model: Any, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """`[N, H]` states that predict the sampled tokens, and the `[N]` tokens, row after row."""
    positions = (rollout.attended.cumsum(1) - 1).clamp_min(0)
    hidden = model.base_model(
        input_ids=rollout.ids,
        attention_mask=rollout.attended.long(),
        position_ids=positions,
        use_cache=False,
    ).last_hidden_state
    return hidden[:, :-1][rollout.sampled[:, 1:]], rollout.ids[rollout.sampled]


def terms_of(
    method: Method, rollout: Rollout, advantages: Tensor, tokens: Tensor, old_logp: Tensor | None
) -> TokenTerms:
    """The loss of a rollout's tokens, flat."""
    mask = rollout.sampled
    rows = mask.nonzero()[:, 0]
    return TokenTerms(
        tokens,
        advantages[rows],
        aggregation_weights(method, mask)[mask],
        method=method,
        old_logp=old_logp,
        sequence_ids=rows,
    )


def train_step(
    model: Any,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    advantages: Tensor,
    method: Method,
    updates: int,
) -> list[TokenTerms]:
    """Several updates on one rollout; what each knew of its tokens."""
    old_logp, seen = None, []
    for _ in range(updates):
        hidden, tokens = hidden_states(model, rollout)
        terms = terms_of(method, rollout, advantages, tokens, old_logp)
        loss = fused_policy_loss(hidden, language_model_head(model), terms)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if old_logp is None:
            # The first update is on-policy: its own log-probabilities are the old ones. Tokens
            # without an advantage have none, and need none.
            old_logp = torch.where(terms.computed, terms.stats.logp, 0.0)
        seen.append(terms)
    return seen


def report(step: int, rewards: Tensor, terms: TokenTerms) -> None:
    """One line: what came out, how sure the policy is, how far it has moved."""
    stats, computed = terms.stats, terms.computed
    if not computed.any():
        print(f"step {step:3d}  reward {rewards.mean():.3f}  equal in every group: no update")
        return
    delta = -torch.expm1(stats.log_pmax[computed])
    ratio = torch.ones(1)
    if terms.old_logp is not None:
        ratio = (stats.logp - terms.old_logp)[computed].exp()
    print(
        f"step {step:3d}  reward {rewards.mean():.3f}  delta {delta.mean():.3f}  "
        f"entropy {stats.entropy[computed].mean():.3f}  "
        f"ratio {ratio.min():.2f} to {ratio.max():.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--method", default="acpo", help=f"{METHODS_HERE} [acpo]")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8, help="completions per prompt")
    parser.add_argument("--updates", type=int, default=2, help="per rollout")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    args = parser.parse_args()
    for name in ("steps", "prompts", "group", "updates"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} {getattr(args, name)} must be 1 or more")
    try:
        method = get_method(args.method)
    except ACPOError as error:
        parser.error(str(error))
    if "max_length" in method.options:
        method = get_method(args.method, max_length=NEW_TOKENS)
    if method.needs_whole_batch:
        parser.error(f"--method {method.name} looks at the whole batch first; here: {METHODS_HERE}")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(START)
    tokenizer = AutoTokenizer.from_pretrained(START)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.0)
    problems = chain_problems(args.steps * args.prompts)
    for step in range(args.steps):
        chosen = problems[step * args.prompts : (step + 1) * args.prompts]
        each = [problem for problem in chosen for _ in range(args.group)]
        rollout = sample(model, tokenizer, [p.prompt for p in each], NEW_TOKENS)
        pairs = zip(each, rollout.texts, strict=True)
        rewards = torch.tensor([float(read_answer(text) == p.answer) for p, text in pairs])
        advantages = group_advantages(rewards, args.group, scale=method.advantage_scale)
        seen = train_step(model, optimizer, rollout, advantages, method, args.updates)
        report(step, rewards, seen[-1])


if __name__ == "__main__":
    main()
