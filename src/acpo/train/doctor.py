"""`acpo doctor`: what is wrong with a recipe, and in plain words what it will do."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from acpo.engines.trl.checkpoint import check_folder
from acpo.engines.trl.identity import decisive
from acpo.engines.trl.rewards import checked_reward
from acpo.errors import ACPOError
from acpo.train.checks import check_finite, empty_model, gather, gold_answers, resumption
from acpo.train.data import TrainingData, prompt_ids, prompt_lengths
from acpo.train.plan import BatchPlan, in_updates, plan_batches, training_bytes
from acpo.train.recipe import Recipe, read_recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GIB = 1 << 30


@dataclass
class Findings:
    """What the examination says, as it says it; `problems` of it stop or spoil the run."""

    console: Console = field(default_factory=lambda: Console(soft_wrap=True, highlight=False))
    problems: int = 0

    def section(self, title: str) -> None:
        """Start a part."""
        self.console.print(f"\n{title}", style="bold", markup=False)

    def fine(self, text: str) -> None:
        """Something that holds."""
        self.console.print(f"  ok       {text}", markup=False)

    def note(self, text: str) -> None:
        """Something worth knowing."""
        self.console.print(f"  note     {text}", style="yellow", markup=False)

    def problem(self, text: str) -> None:
        """Something that stops or spoils the run."""
        self.problems += 1
        self.console.print(f"  problem  {text}", style="red", markup=False)


def examine(
    path: str | Path, overrides: Sequence[str] = (), *, processes: int | None = None
) -> bool:
    """Examine a recipe, planned for so many processes, and print the findings; whether it is fit.

    Unless given, `processes` are those of this launch.
    """
    findings = Findings()
    recipe, elsewhere = _read(path, overrides, processes)
    findings.section(f"{path}: {recipe.config.objective.title} on {recipe.task.task}")
    name, tokenizer, data = gather(recipe, elsewhere=elsewhere)
    options = {} if elsewhere else decisive(recipe.config)  # some follow from the machine
    check_folder(recipe.output_dir, resumption(recipe.config), options)
    check_finite(name)
    if elsewhere:
        findings.note("no GPU here: this is the plan for a machine that has what the recipe needs")
    plan = plan_batches(recipe, len(data.train))
    findings.section("data")
    for note in data.notes:
        findings.fine(note)
    _check_prompts(findings, data, tokenizer)
    _check_rewards(findings, data)
    _check_batches(findings, recipe, plan)
    _check_memory(findings, recipe, name, on_cpu=recipe.config.use_cpu and not elsewhere)
    _foretell(findings, recipe, data, plan)
    count = findings.problems
    verdict = "ready to train" + " where there is a GPU" * elsewhere
    verdict = f"{count} problem{'s' if count > 1 else ''}" if count else verdict
    findings.console.print(f"\n{verdict}", style="bold", markup=False)
    return not count


def _read(path: str | Path, overrides: Sequence[str], processes: int | None) -> tuple[Recipe, bool]:
    """A recipe, and whether another machine is to train it: one with a GPU, where here is none."""
    import torch

    here = torch.cuda.is_available()
    try:
        recipe = read_recipe(path, overrides, processes=processes)
    except ACPOError:
        if here or any(text.replace("-", "_").startswith("__use_cpu") for text in overrides):
            raise
        # Recipes for GPUs are refused where there is none; they can be examined all the same.
        overrides = ["--use_cpu", "true", *overrides]
        return read_recipe(path, overrides, processes=processes), True
    return recipe, not here and not recipe.config.use_cpu


def _check_prompts(
    findings: Findings, data: TrainingData, tokenizer: "PreTrainedTokenizerBase"
) -> None:
    findings.section("prompts")
    lengths = prompt_lengths(data.train["prompt"], tokenizer, data.template_options)
    first = data.train[0]["prompt"]
    kind = "plain text" if isinstance(first, str) else "chat"
    findings.fine(
        f"{kind}; {statistics.median(lengths):.0f} tokens in the middle, {max(lengths)} at most"
    )
    ids = prompt_ids([first], tokenizer, data.template_options)[0]
    findings.fine(f"the first one, as the model reads it: {tokenizer.decode(ids)!r}")
    if tokenizer.pad_token == tokenizer.eos_token:
        findings.note(f"no pad token of its own: {tokenizer.eos_token!r} pads as well")


def _check_rewards(findings: Findings, data: TrainingData) -> None:
    findings.section("reward")
    tried = gold_answers(data)
    every = [row for row, _ in tried]
    known = [(row, gold) for row, gold in tried if gold is not None]
    rows = [row for row, _ in known]
    golds = [gold for _, gold in known]
    reward, *others = map(checked_reward, data.rewards)
    try:
        right = _rewards(reward, rows, golds) if rows else []
        wrong = _rewards(reward, every, [""] * len(every))
        for other in others:  # what they return is for the user to judge
            _rewards(other, [*rows, *every], [*golds, *[""] * len(every)])
    except ACPOError as error:
        findings.problem(str(error))
        return
    answers = [(row["answer"], value) for row, value in zip(rows, right, strict=True)]
    refused = [answer for answer, value in answers if value is not None and value <= 0]
    unjudged = [answer for answer, value in answers if value is None]
    earning = len(rows) - len(refused) - len(unjudged)
    if rows:
        (findings.fine if earning else findings.problem)(
            f"{earning} of {len(rows)} gold answers earn a reward"
        )
    else:
        findings.note("the rows have no gold answers, so the reward was not tried on any")
    if refused:
        findings.problem(
            f"{len(refused)} gold answers earn none, such as {refused[0]!r}: the model could never "
            "be right on them"
        )
    if unjudged:
        findings.note(
            f"{len(unjudged)} gold answers cannot be judged, such as {unjudged[0]!r}: such "
            "problems teach nothing"
        )
    if any(value is not None and value > 0 for value in wrong):
        findings.problem("an empty completion earns a reward")
    else:
        findings.fine("an empty completion earns none")


def _rewards(
    reward: Callable[..., Any], rows: list[dict[str, Any]], completions: list[str]
) -> list[float | None]:
    import asyncio
    import inspect

    from transformers import TrainerState

    columns = {key: [row[key] for row in rows] for key in rows[0] if key != "prompt"}
    shaped: list[Any] = [
        text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": text}]
        for row, text in zip(rows, completions, strict=True)
    ]
    prompts = [row["prompt"] for row in rows]
    ids = [list(range(len(text))) for text in completions]
    given: dict[str, Any] = {
        "prompts": prompts,
        "completions": shaped,
        "completion_ids": ids,
        **columns,
    }
    given |= {"trainer_state": TrainerState(), "log_extra": _dropped, "log_metric": _dropped}
    values: Any = reward(**given)
    return asyncio.run(values) if inspect.iscoroutine(values) else values


def _dropped(*_: Any) -> None:
    """What a reward function logs while it is tried."""


def _check_batches(findings: Findings, recipe: Recipe, plan: BatchPlan) -> None:
    processes = recipe.config.world_size
    findings.section(f"batches, on {processes} process{'es' if processes > 1 else ''}")
    findings.fine(
        f"a rollout is {plan.prompts} problems x {recipe.config.num_generations} completions = "
        f"{plan.rollout}"
    )
    findings.fine(
        f"{plan.updates_per_rollout} updates per rollout, {plan.per_update} completions each"
    )
    if plan.updates_per_rollout == 1:
        findings.fine("on-policy: every update is taken on fresh samples")
    else:
        findings.fine(
            f"off-policy: the last update of a rollout is {plan.updates_per_rollout - 1} "
            "step(s) away from the model that sampled it"
        )
    if plan.updates_per_rollout > 16:
        findings.note("more than 16 updates per rollout: expect ratios far from 1")


def _check_memory(findings: Findings, recipe: Recipe, name: str, *, on_cpu: bool) -> None:
    import torch

    processes = recipe.config.world_size
    findings.section("memory")
    parameters = empty_model(recipe, name).num_parameters()
    if recipe.model.use_peft:
        findings.note("LoRA: only adapters have gradients and moments; this estimate is too high")
    needed = training_bytes(parameters, dtype=recipe.model.dtype, shards=processes)
    findings.fine(
        f"{parameters:,} parameters in {recipe.model.dtype or 'float32'}: weights, gradients and "
        f"moments take {needed / GIB:.2f} GiB per process if sharded over {processes}; "
        "activations come on top, in packs that fit"
    )
    if recipe.config.sampler == "generate" and parameters < 3e9 and not on_cpu:
        findings.note("sampler=static beat vLLM at 0.5B and 1.5B on an H200: docs/vllm.md")
    if torch.cuda.is_available() and not recipe.config.use_cpu:
        total = torch.cuda.get_device_properties(0).total_memory
        share = recipe.config.vllm_gpu_memory_utilization if recipe.config.use_vllm else 0.0
        free = total * (1 - share) if recipe.config.vllm_mode == "colocate" else float(total)
        if needed > free:
            findings.problem(f"this GPU leaves {free / GIB:.0f} GiB for it: it does not fit")


def _foretell(findings: Findings, recipe: Recipe, data: TrainingData, plan: BatchPlan) -> None:
    config, method = recipe.config, recipe.config.objective
    findings.section("what will happen")
    saves = {
        "no": "no checkpoint",
        "steps": f"checkpoints every {in_updates(config.save_steps, plan)} updates and at the end",
        "epoch": "a checkpoint after every pass over the problems and at the end",
        "best": f"a checkpoint whenever {config.metric_for_best_model} is the best so far",
    }[config.save_strategy]
    options = ", ".join(f"{key}={value}" for key, value in method.options.items())
    sentences = [
        f"{method.title} ({options}) trains {recipe.model.model_name_or_path} at learning rate "
        f"{config.learning_rate:g}.",
        f"It samples {plan.rollouts} rollouts at temperature {config.temperature:g}, completions "
        f"of at most {config.max_completion_length} tokens, and takes {plan.updates} updates: "
        f"{plan.epochs:.2f} passes over {len(data.train)} problems.",
        f"Output goes to {config.output_dir}; {saves}.",
    ]
    if data.held_out is not None:
        often = {
            "no": "",
            "steps": f", and every {in_updates(config.eval_steps or 1, plan)} updates",
            "epoch": ", and after every pass over the problems",
        }[config.eval_strategy]
        sentences.append(
            f"Accuracy on {len(data.held_out)} held-out problems is measured before and after"
            f"{often}."
        )
    findings.console.print("  " + "\n  ".join(sentences), markup=False)
