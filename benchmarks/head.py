"""Time, memory and accuracy of the policy-loss head, side by side with its peers, in one run.

    python benchmarks/head.py --out results/head.json            # CUDA, about five minutes
    python benchmarks/head.py --only sapo simko --no-growth --out results/head_simko.json
    python benchmarks/head.py --cpu --out results/head_cpu.json  # the CPU path against dense torch

Every contender does forward and backward for hidden states and head on the same data. Peers that
cannot compute ACPO run SAPO, or the plain negative log-likelihood where they know nothing else
("loss" says which). The floor is the three bare matrix products. Times are medians over CUDA
events; memory is the peak above the inputs; errors are relative L2 distances to a float32
reference of the same loss. Each contender first runs for half a second, so that all are timed at
the clocks a busy chip holds. Peers that are not installed are reported as such, not skipped.
"""

import argparse
import json
import math
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from environment import environment
from measuring import cuda_milliseconds, cuda_peak_gib, in_own_process
from torch import Tensor

from acpo.head import TokenTerms, fused_policy_loss, token_stats
from acpo.head.rows import missing_sequence_mean
from acpo.objectives import get_method, stats_from_logits
from acpo.objectives.gates import TokenInputs
from acpo.objectives.loss import evaluate_tokens, objective_value
from acpo.objectives.tokens import mean_top_logp, scaled_log_probs

VOCAB = 151_936
PEERS = ("trl", "liger_kernel", "cut_cross_entropy", "verl")


@dataclass
class Data:
    """One synthetic batch: sharp, on-policy distributions as a trained policy has them."""

    hidden: Tensor
    weight: Tensor
    tokens: Tensor
    old_logp: Tensor
    advantages: Tensor
    weights: Tensor
    marks: Tensor
    shape: dict[str, float] = field(default_factory=dict)
    gradient: Tensor | None = None

    @classmethod
    def make(cls, rows: int, width: int, vocab: int, device: str, dtype: torch.dtype) -> "Data":
        torch.manual_seed(0)
        weight = torch.randn(vocab, width, device=device, dtype=dtype) / width**0.5
        # Five candidates a row, 7 to 10 nats above the summed mass of the rest of the vocabulary.
        # Token ids follow a log-uniform law, roughly as frequent as ranked words are.
        candidates = (torch.rand(rows, 5, device=device) * math.log(vocab)).exp().long() - 1
        lead = math.log(vocab) + 7 + 3 * torch.rand(rows, 1, device=device)
        others = lead - 7 * torch.rand(rows, 4, device=device).sqrt()
        lead = torch.cat([lead, others], 1)
        hidden = 0.3 * torch.randn(rows, width, device=device)
        for k in range(5):
            hidden += lead[:, k : k + 1] * weight[candidates[:, k]].float()
        hidden = hidden.to(dtype)
        tokens, logp, entropy, aligned = [], [], [], []
        for part in hidden.split(2048):
            log_p = torch.log_softmax((part @ weight.t()).float(), -1)
            drawn = torch.multinomial(log_p.exp(), 1)
            tokens.append(drawn[:, 0])
            logp.append(log_p.gather(1, drawn)[:, 0])
            entropy.append(-(log_p.exp() * log_p).sum(-1))
            aligned.append(log_p.argmax(-1) == drawn[:, 0])
        old = torch.cat(logp) + 0.1 * torch.randn(rows, device=device)
        advantages = torch.randn(rows, device=device)
        weights = torch.full((rows,), 1.0 / rows, device=device)
        shape = {
            "mode_aligned": round(float(torch.cat(aligned).float().mean()), 3),
            "mean_entropy": round(float(torch.cat(entropy).mean()), 3),
        }
        marks = (torch.cat(entropy) > torch.cat(entropy).quantile(0.8)).float()
        return cls(hidden, weight, torch.cat(tokens), old, advantages, weights, marks, shape)

    def inputs(self, method: str = "acpo") -> dict[str, Tensor]:
        names = ["tokens", "old_logp", "advantages", "weights"]
        names += ["marks"] if get_method(method).shaping.marks else []
        return {name: getattr(self, name) for name in names}

    def leaves(self) -> tuple[Tensor, Tensor]:
        return self.hidden.detach().requires_grad_(), self.weight.detach().requires_grad_()


Contender = Callable[[Data, Tensor, Tensor], Tensor]
"""Loss of a batch for given leaves (hidden, weight); backward is called on the result."""


def ours(method: str = "acpo", **settings: Any) -> Contender:
    def run(data: Data, hidden: Tensor, weight: Tensor) -> Tensor:
        terms = TokenTerms(**data.inputs(method), method=method)
        return fused_policy_loss(hidden, weight, terms, **settings)

    return run


def frozen(data: Data, hidden: Tensor, weight: Tensor) -> Tensor:
    return fused_policy_loss(hidden, weight.detach(), TokenTerms(**data.inputs()))


def naive(data: Data, hidden: Tensor, weight: Tensor) -> Tensor:
    """Materialised float32 logits and autograd."""
    logits = (hidden @ weight.t()).float()
    stats = stats_from_logits(logits=logits, tokens=data.tokens)
    row = get_method("acpo")
    inputs = TokenInputs(stats, data.old_logp, data.advantages, lambda x: x, row.options)
    gated, credit = evaluate_tokens(row, inputs)
    return -(data.weights * data.advantages * gated.value * credit.value).sum()


def sapo(data: Data, logp: Tensor) -> Tensor:
    """SAPO from log-probabilities, for peers that only give those."""
    ratio = torch.exp(logp - data.old_logp)
    tau = torch.where(data.advantages > 0, 1.0, 1.05)
    gate = 4 / tau * torch.sigmoid(tau * (ratio - 1))
    return -(data.weights * data.advantages * gate).sum()


def from_statistics(data: Data, hidden: Tensor, weight: Tensor) -> Tensor:
    """A loss of one's own on our log-probabilities; entropy and p_max come with them."""
    return sapo(data, token_stats(hidden, weight, data.tokens, differentiable=("logp",)).logp)


def trl_head(data: Data, hidden: Tensor, weight: Tensor) -> Tensor:
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction

    logp, *_ = ChunkedLogProbFunction.apply(
        hidden, weight, None, data.tokens, 1.0, 32768, None, 1.0, ("entropy",)
    )
    return sapo(data, logp)


def liger_grpo(data: Data, hidden: Tensor, weight: Tensor) -> Tensor:
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    rows = 16
    loss = LigerFusedLinearGRPOLoss(beta=0.0, loss_type="sapo", use_ref_model=False)
    return loss(
        hidden.view(rows, -1, hidden.shape[1]),
        weight,
        data.tokens.view(rows, -1),
        torch.ones(rows, data.tokens.numel() // rows, device=hidden.device),
        data.advantages.view(rows, -1)[:, 0],
        old_per_token_logps=data.old_logp.view(rows, -1),
    )[0]


def liger_nll(data: Data, hidden: Tensor, weight: Tensor) -> Tensor:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    return LigerFusedLinearCrossEntropyLoss()(weight, hidden, data.tokens)


def cce(data: Data, hidden: Tensor, weight: Tensor) -> Tensor:
    from cut_cross_entropy import linear_cross_entropy

    return sapo(data, -linear_cross_entropy(hidden, weight, data.tokens, reduction="none"))


def cce_nll(data: Data, hidden: Tensor, weight: Tensor) -> Tensor:
    from cut_cross_entropy import linear_cross_entropy

    return linear_cross_entropy(hidden, weight, data.tokens)


def verl_triton(data: Data, hidden: Tensor, weight: Tensor) -> Tensor:
    from verl.utils.kernel.linear_cross_entropy import linear_cross_entropy

    logp, _ = linear_cross_entropy(hidden, weight, data.tokens, 1.0, "none")
    return sapo(data, logp)


def verl_torch(data: Data, hidden: Tensor, weight: Tensor) -> Tensor:
    from verl.utils.experimental.torch_functional import FusedLinearForPPO

    logp, _ = FusedLinearForPPO()(hidden[None], weight, data.tokens[None])
    return sapo(data, logp[0])


@torch.compile(dynamic=False)
def _compiled_row_step(z: Tensor, tokens: Tensor, old: Tensor, adv: Tensor, w: Tensor) -> Any:
    """ACPO's row step for torch.compile: loss and logit gradient of a chunk of bf16 logits."""
    z = z.float()
    top = z.amax(-1, keepdim=True)
    log_z = top + (z - top).exp().sum(-1, keepdim=True).log()
    z_token = z.gather(1, tokens[:, None])
    logp, m = z_token - log_z, torch.exp(top - log_z)
    aligned = z_token >= top
    adv, w = adv[:, None], w[:, None]
    positive = adv > 0
    tau = torch.where(positive, 1.0, 1.05)
    ratio = torch.exp(logp - old[:, None])
    s = torch.sigmoid(tau * (ratio - 1))
    f, slope = 4 / tau * s, 4 * s * (1 - s) * ratio
    live = torch.where(positive, 3 - m, m)
    dead = torch.where(positive, 3 - 3 * m, 3 * m)
    credit = torch.where(aligned, live, dead)
    pull = credit * slope + torch.where(aligned, torch.where(positive, -m, m) * f, 0.0)
    a = -w * adv * pull
    column = torch.arange(z.shape[1], device=z.device)[None]
    p = torch.exp(z - log_z)
    gradient = torch.where(column == tokens[:, None], a, 0.0) - a * p
    entropy = log_z - (p * z).sum(-1, keepdim=True)
    return -(w * adv * f * credit).sum(), gradient.to(torch.bfloat16), entropy


def compiled_chunks(data: Data, hidden: Tensor, weight: Tensor) -> Tensor:
    loss, dh, dw = 0.0, torch.empty_like(hidden), None
    size = min(4096, len(hidden))
    with torch.no_grad():
        for start in range(0, len(hidden), size):
            part = slice(start, start + size)
            z = hidden[part] @ weight.t()
            columns = (data.tokens, data.old_logp, data.advantages, data.weights)
            value, gradient, _ = _compiled_row_step(z, *(c[part] for c in columns))
            loss = loss + value
            dh[part] = gradient @ weight
            if dw is None:
                dw = torch.mm(gradient.t(), hidden[part], out_dtype=torch.float32)
            else:
                torch.addmm(dw, gradient.t(), hidden[part], out_dtype=torch.float32, out=dw)
    hidden.grad, weight.grad = dh, dw.to(weight.dtype)
    return loss


def floor(data: Data, hidden: Tensor, weight: Tensor) -> Tensor:
    """The three products any exact gradient needs, and nothing else."""
    with torch.no_grad():
        z = hidden @ weight.t()
        hidden.grad, weight.grad = z @ weight, z.t() @ hidden
    return hidden.grad[0, 0]


def gradient_floor(data: Data, hidden: Tensor, weight: Tensor) -> Tensor:
    """The same products with a real gradient in place of logits: tiny numbers cost less power."""
    with torch.no_grad():
        z = hidden @ weight.t()
        del z
        if data.gradient is None:
            data.gradient = torch.cat(
                [
                    torch.softmax((part @ weight.t()).float(), -1).mul_(1 / len(hidden)).bfloat16()
                    for part in hidden.split(2048)
                ]
            )
        g = data.gradient
        hidden.grad, weight.grad = g @ weight, g.t() @ hidden
    return hidden.grad[0, 0]


CONTENDERS: dict[str, tuple[str, Contender]] = {
    "floor: three bare products": ("none", floor),
    "floor, with a gradient's numbers": ("none", gradient_floor),
    "acpo, float32 logits": ("acpo", ours()),
    "acpo, frozen head": ("frozen", frozen),
    "acpo, sparse 1e-5": ("acpo", ours(sparse=1e-5)),
    "sapo, float32 logits": ("sapo", ours("sapo")),
    "sapo from token_stats": ("sapo", from_statistics),
    "simko, float32 logits": ("simko", ours("simko")),
    "acpo_no_routing, float32 logits": ("acpo_no_routing", ours("acpo_no_routing")),
    "naive torch": ("acpo", naive),
    "torch.compile'd chunks, bfloat16 logits": ("acpo", compiled_chunks),
    "TRL fused head": ("sapo", trl_head),
    "verl Triton": ("sapo", verl_triton),
    "verl torch chunks": ("sapo", verl_torch),
    "cut-cross-entropy": ("sapo", cce),
    "cut-cross-entropy, NLL": ("nll", cce_nll),
    "Liger fused linear GRPO": ("own", liger_grpo),
    "Liger fused linear CE": ("nll", liger_nll),
}


def reference_gradients(data: Data, method: str) -> tuple[Tensor, Tensor]:
    """Gradients from float32 copies, 512 rows at a time."""
    weight = data.weight.float().requires_grad_()
    total = torch.zeros_like(weight)
    dh = torch.empty_like(data.hidden, dtype=torch.float32)
    for start in range(0, len(data.tokens), 512):
        part = slice(start, start + 512)
        hidden = data.hidden[part].float().requires_grad_()
        inputs = {name: x[part] for name, x in data.inputs(method).items()}
        terms, logits = TokenTerms(**inputs, method=method), hidden @ weight.t()
        stats = stats_from_logits(logits=logits, tokens=terms.tokens, align_tol=terms.align_tol)
        top_logp = None
        if terms.method.candidates:
            log_probs = scaled_log_probs(logits, 1.0)
            top_logp = mean_top_logp(log_probs, terms.method.candidates, terms.tokens)
        read = terms.inputs(stats, missing_sequence_mean)._replace(top_logp=top_logp)
        gated, credit = evaluate_tokens(terms.method, read)
        loss = -(terms.weights * objective_value(terms.advantages, gated, credit)).sum()
        dh[part], dw = torch.autograd.grad(loss, (hidden, weight))
        total += dw
    return dh, total


class Trial:
    """One contender on one batch, timed at the clocks the chip holds under its load."""

    def __init__(self, data: Data, contender: Contender) -> None:
        self.data, self.contender = data, contender
        self.hidden, self.weight = data.leaves()

    def call(self) -> None:
        self.hidden.grad = self.weight.grad = None
        loss = self.contender(self.data, self.hidden, self.weight)
        if loss.requires_grad:
            loss.backward()

    def milliseconds(self, repeats: int) -> float:
        found = cuda_milliseconds(self.call, repeats)
        self.hidden.grad = self.weight.grad = None
        return round(found, 3)

    def peak_gib(self) -> float:
        self.hidden.grad = self.weight.grad = None
        return round(cuda_peak_gib(self.call), 3)


def relative(a: Tensor | None, b: Tensor) -> float | None:
    if a is None:
        return None
    pairs = zip(a.split(8192), b.split(8192), strict=True)
    distance = sum(float((x.float() - y).norm() ** 2) for x, y in pairs) ** 0.5
    return float(f"{distance / float(b.norm()):.3e}")


def compare(rows: int, width: int, repeats: int, only: list[str]) -> dict[str, Any]:
    torch._dynamo.reset()  # a peer's compiled code trips over a second shape
    data = Data.make(rows, width, VOCAB, "cuda", torch.bfloat16)
    table: dict[str, Any] = {"data": data.shape}
    print(f"  data: {data.shape}", flush=True)
    reference: tuple[str, Any] = ("", None)
    trials: dict[str, Trial] = {}
    for name, (loss, contender) in CONTENDERS.items():
        if only and not any(word in name for word in ["floor:", *only]):
            continue
        trial = Trial(data, contender)
        try:
            trial.call()
            table[name] = {"loss": loss, "peak_GiB": trial.peak_gib()}
        except Exception as error:  # a peer that fails is a line of the report
            table[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
            continue
        trials[name] = trial
        kind = "acpo" if loss == "frozen" else loss
        if kind in ("acpo", "sapo", "simko", "acpo_no_routing"):
            if kind != reference[0]:
                reference = kind, reference_gradients(data, kind)
            gradients = (trial.hidden.grad, trial.weight.grad)
            table[name]["error_dh"], table[name]["error_dW"] = (
                relative(g, r) for g, r in zip(gradients, reference[1], strict=True)
            )
        trial.hidden.grad = trial.weight.grad = None
    del reference
    torch.cuda.empty_cache()
    for name, trial in trials.items():
        table[name]["ms"] = trial.milliseconds(repeats)
    # The floor again, last: how far the chip has drifted meanwhile.
    floor_trial = trials["floor: three bare products"]
    floors = [table["floor: three bare products"]["ms"], floor_trial.milliseconds(repeats)]
    table["floor: three bare products"]["ms_last"] = floors[1]
    for name in trials:
        table[name]["times_floor"] = round(table[name]["ms"] / statistics.mean(floors), 3)
    for name, result in table.items():
        print(f"  {name:42s} {json.dumps(result)}", flush=True)
    return table


def repeats_bitwise(rows: int, width: int) -> bool:
    data = Data.make(rows, width, VOCAB, "cuda", torch.bfloat16)
    results = []
    for _ in range(2):
        trial = Trial(data, ours())
        trial.call()
        results.append([trial.hidden.grad, trial.weight.grad])
    return all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def growth(width: int, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Time per token and peak memory of the exact head as the batch grows."""
    table = {}
    for rows in sizes:
        data = Data.make(rows, width, VOCAB, "cuda", torch.bfloat16)
        trial = Trial(data, ours())
        trial.call()
        result = {"peak_GiB": trial.peak_gib()}
        result["ms"] = trial.milliseconds(5)
        result["us_per_token"] = round(1000 * result["ms"] / rows, 4)
        # The gradient of the hidden states is an output that any method must hold.
        result["peak_less_dh_GiB"] = round(result["peak_GiB"] - rows * width * 2 / 2**30, 3)
        table[str(rows)] = result
        print(f"  N={rows:7d} {json.dumps(result)}", flush=True)
        del data, trial
        torch.cuda.empty_cache()
    return table


CPU_SHAPE = (4096, 512, 32768)


def cpu(shape: tuple[int, int, int] = CPU_SHAPE) -> dict[str, Any]:
    """Each path in a process of its own, whose peak memory is then that path's."""
    table = {}
    for name, path in (("acpo", "ours()"), ("dense torch", "naive")):
        table[name] = in_own_process("head", f"on_cpu(head.{path}, {shape})")
        print(f"  {name:20s} {json.dumps(table[name])}")
    return {"N={} H={} V={}".format(*shape): table}


def on_cpu(run: Callable[..., Tensor], shape: tuple[int, int, int]) -> dict[str, float]:
    rows, width, vocab = shape
    torch.manual_seed(
        0
    )  # drawn plainly: making data like a policy's takes more than what is measured
    data = Data(
        hidden=torch.randn(rows, width),
        weight=torch.randn(vocab, width) / width**0.5,
        tokens=torch.randint(vocab, (rows,)),
        old_logp=torch.randn(rows) - 9,
        advantages=torch.randn(rows),
        weights=torch.full((rows,), 1 / rows),
        marks=torch.zeros(rows),
    )
    times = []
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        hidden, weight = data.leaves()
        began = time.perf_counter()
        run(data, hidden, weight).backward()
        times.append(time.perf_counter() - began)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
    return {"seconds": min(times), "peak_MiB": peak / 1024}


def markdown(report: dict[str, Any]) -> str:
    """The report's tables, as docs/head.md shows them."""
    lines = []
    for shape in (key for key in report if key.startswith("N=")):
        lines += [
            f"\n**{shape}, V={VOCAB:,}**\n",
            "| | loss | ms | × floor | peak GiB | error dh / dW |",
        ]
        lines.append("|---|---|---|---|---|---|")
        for name, r in report[shape].items():
            if name == "data":
                continue
            if "error" in r:
                lines.append(f"| {name} | | failed | | | |")
                continue
            errors = [f"{r[k]:.1e}" for k in ("error_dh", "error_dW") if r.get(k) is not None]
            cells = (name, r["loss"], r["ms"], r["times_floor"], r["peak_GiB"], " / ".join(errors))
            lines.append("| " + " | ".join(str(c) for c in cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    output = parser.add_mutually_exclusive_group(required=True)
    output.add_argument("--out", type=Path, help="measure, and write the report here")
    output.add_argument("--table", type=Path, help="print a written report as Markdown")
    parser.add_argument("--cpu", action="store_true", help="time the CPU path instead")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--only", nargs="+", default=[], help="run only contenders whose name contains one of these"
    )
    parser.add_argument("--no-growth", action="store_true", help="skip the growth table")
    arguments = parser.parse_args()
    if arguments.table:
        print(markdown(json.loads(arguments.table.read_text())))
        return
    report: dict[str, Any] = {"environment": environment("torch", "triton", *PEERS)}

    def save() -> None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1) + "\n")

    if arguments.cpu:
        report["cpu"] = cpu()
        save()
        return
    for rows, width in ((8192, 4096), (16384, 1024), (4096, 4096)):
        print(f"N={rows} H={width} V={VOCAB}", flush=True)
        report[f"N={rows} H={width}"] = compare(rows, width, arguments.repeats, arguments.only)
        save()
    if not arguments.no_growth:
        report["bitwise_equal_repeats"] = repeats_bitwise(20_000, 1024)
        print("growth, H=4096", flush=True)
        report["growth H=4096"] = growth(4096, (4096, 8192, 16384, 32768, 65536, 131072))
        save()


if __name__ == "__main__":
    main()
