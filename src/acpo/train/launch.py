"""`acpo train`: a recipe in, a trained model and a report out."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from acpo.checkpoints import adapter_base, load_model
from acpo.engines.trl.checkpoint import newest, saving
from acpo.tasks.sources import is_file
from acpo.train.accuracy import BeforeAndAfter, accuracy
from acpo.train.checks import gather, in_one_line, resumption
from acpo.train.data import TrainingData
from acpo.train.recipe import Recipe, read_recipe
from acpo.train.report import Report, draw_curves, summary


class Run(NamedTuple):
    """A run that is ready to start."""

    recipe: Recipe
    data: TrainingData
    trainer: Any
    clock: "TrainingClock"
    probe: BeforeAndAfter | None


class TrainingClock(TrainerCallback):
    """Time from before the first to after the last update, with rollouts, without evaluation."""

    def __init__(self) -> None:
        self.began: tuple[float, float] | None = None
        self.seconds = self.cpu_seconds = 0.0
        self.first = 0  # updates made before an interruption, which are not timed

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.began is None:
            self.began = (time.perf_counter(), time.process_time())
            self.first = state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.began is not None:
            self.seconds = time.perf_counter() - self.began[0]
            self.cpu_seconds = time.process_time() - self.began[1]

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.began is not None:  # begin later by what passed since the last update
            self.began = (
                time.perf_counter() - self.seconds,
                time.process_time() - self.cpu_seconds,
            )


class LiveProgress(TrainerCallback):
    """One line for the whole run; where there is no terminal, ten in its course.

    Args:
        reward: name of the reward function whose mean is shown.
        is_accuracy: whether that mean is the share of right answers.
    """

    def __init__(self, reward: str, *, is_accuracy: bool) -> None:
        self.key, self.is_accuracy = f"rewards/{reward}/mean", is_accuracy
        self.bar: tqdm | None = None
        self.next_line = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                desc="training",
                unit="update",
                disable=not sys.stderr.isatty(),
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs = kwargs.get("logs") or {}
        if self.bar is None or logs.get(self.key) is None:
            return
        mean = logs[self.key]
        shown = f"accuracy {mean:.1%}" if self.is_accuracy else f"reward {mean:.3f}"
        self.bar.set_postfix_str(shown)
        if self.bar.disable and state.global_step >= self.next_line:
            self.next_line = state.global_step + state.max_steps / 10
            print(f"update {state.global_step}/{state.max_steps}  {shown}", flush=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.close()


def train(path: str | Path, overrides: Sequence[str] = ()) -> Report:
    """Train what a recipe describes, some of its values replaced by `--key value` pairs.

    The report is also written to `<output_dir>/report.json`.
    """
    run = prepare(read_recipe(path, overrides))
    with _stoppable(run):
        return _train(run)


@contextmanager
def _stoppable(run: Run) -> Iterator[None]:
    """Ctrl-C and SIGTERM end what is inside with a line that says what is kept."""

    def stop(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    # Of several processes one may wait for the others where no handler is reached.
    alone = run.recipe.config.world_size == 1
    handles = alone and threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if handles else None
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        state, there = run.trainer.state, newest(run.recipe.output_dir)
        left = "no checkpoint is there yet: the same command starts anew (save_steps writes some)"
        if there:
            left = f"{there} is kept: the same command with --resume_from_checkpoint true "
            left += "goes on from it"
        if run.recipe.config.process_index == 0:
            at = f"stopped at update {state.global_step} of {state.max_steps}"
            print(f"\n{at}; {left}", file=sys.stderr, flush=True)
        raise
    finally:
        if handles:
            signal.signal(signal.SIGTERM, before)


def _train(run: Run) -> Report:
    config, trainer = run.recipe.config, run.trainer
    for note in (*run.data.notes, str(trainer.packed.attention)):
        trainer.accelerator.print(note)
    trainer.train(resume_from_checkpoint=resumption(config))
    # What the run that trained has left stays as it is.
    left = trainer.watch.finished and _saved_step(run.recipe) == trainer.state.global_step
    kept = Report.read(run.recipe.output_dir) if left else None
    if kept is not None:
        return kept
    if not left:
        if trainer.is_fsdp_enabled:  # else transformers writes no model
            trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        with saving(run.recipe.output_dir, "the trained model"):
            trainer.save_model(config.output_dir, _internal_call=True)  # and does not push it
    if run.probe is not None:
        run.probe.finish()
    report = _finish(run)
    if not left:
        if config.push_to_hub:
            trainer.push_to_hub(dataset_name=_hub_data(run))
        with saving(run.recipe.output_dir, "the state of training"):
            trainer.save_state()
    trainer.accelerator.end_training()
    return report


def _hub_data(run: Run) -> str | None:
    """The data set of the hub that a model was trained on; a file's place is nobody's business."""
    source = run.recipe.task.data or run.data.task.problems
    return source if isinstance(source, str) and not is_file(source) else None


def _saved_step(recipe: Recipe) -> int | None:
    """The step whose model is in the output folder; None if there is none."""
    path = recipe.output_dir / TRAINER_STATE_NAME
    return TrainerState.load_from_json(str(path)).global_step if path.is_file() else None


def prepare(recipe: Recipe, choose: Callable[[TrainingData], TrainingData] | None = None) -> Run:
    """Load the recipe's model and data, and build its trainer; raises for what would fail later.

    `choose` picks from the data before the trainer sees them.
    """
    name, tokenizer, data = gather(recipe, choose=choose)
    trainer, probe, clock = _trainer(recipe, name, tokenizer, data), None, TrainingClock()
    if data.held_out is not None:
        probe = BeforeAndAfter(data.held_out, trainer)
        trainer.add_callback(probe)
    trainer.add_callback(clock)
    trainer.remove_callback(ProgressCallback)
    trainer.remove_callback(PrinterCallback)
    if not recipe.config.disable_tqdm:
        # The tasks' own rewards are 1 or 0; what other functions return has no such meaning.
        is_accuracy = recipe.task.reward_funcs is None
        trainer.add_callback(LiveProgress(trainer.reward_func_names[0], is_accuracy=is_accuracy))
    return Run(recipe, data, trainer, clock, probe)


def _trainer(recipe: Recipe, name: str, tokenizer: Any, data: TrainingData) -> Any:
    from trl import get_peft_config, get_quantization_config

    from acpo import ACPOTrainer

    config, model = recipe.config, recipe.model
    config.model_init_kwargs = kwargs = {
        "revision": model.model_revision,
        "trust_remote_code": config.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **dict(config.model_init_kwargs or {}),  # type: ignore[arg-type]
    }
    with in_one_line(f"{recipe.path}: no trainer could be built"):
        quantized, policy = get_quantization_config(model), name
        if adapter_base(name) is not None:
            options = {"quantization_config": quantized, **kwargs}
            quantized, policy = None, load_model(name, trainable=True, **options)
        return ACPOTrainer(
            model=policy,
            reward_funcs=data.rewards,
            args=config,
            train_dataset=data.train,
            eval_dataset=data.held_out,
            processing_class=tokenizer,
            peft_config=get_peft_config(model),
            quantization_config=quantized,
        )


def _finish(run: Run) -> Report:
    config, state = run.recipe.config, run.trainer.state
    before, after = (run.probe.before, run.probe.after) if run.probe else ([], [])
    report = Report(
        recipe=str(run.recipe.path),
        model=run.recipe.model_name,
        method=config.method,
        seed=config.seed,
        updates=state.global_step,
        timed_updates=state.global_step - run.clock.first,
        train_seconds=round(run.clock.seconds, 1),
        train_cpu_seconds=round(run.clock.cpu_seconds, 1),
        before=accuracy(before),
        after=accuracy(after),
        problems=len({sample.prompt for sample in after}),
        skipped_updates=run.trainer.guard.total,
    )
    if run.recipe.task.report and state.is_world_process_zero:
        folder = run.recipe.output_dir
        path = report.write(folder)
        draw_curves(state.log_history, report, folder / "curves.png")
        print(f"\n{summary(report, before, after, run.recipe.task.try_next)}")
        print(f"\nmodel, curves.png and {path.name} are in {folder}/")
    return report
