"""Small traces of chains and of prose, one token per character or per word."""

import re
from pathlib import Path

import numpy as np

from acpo.annotate.annotations import Annotations, AnnotationWriter, Item, Proposal
from acpo.annotate.annotators import Annotator, Status
from acpo.annotate.pairs import Selection, Span
from acpo.annotate.propose import propose
from acpo.records import TraceWriter
from acpo.tasks.chain import ChainProblem, Step, apply, write_trace


def with_error(problem: ChainProblem, step: int, by: int = 1) -> str:
    """A completion whose given step is off, with the mistake carried on."""
    steps: list[Step] = []
    for number, (operator, digit) in enumerate(problem.operations):
        left = steps[-1].result if steps else problem.start
        result = (apply(left, operator, digit) + by * (number == step)) % 10
        steps.append(Step(left, operator, digit, result))
    return write_trace(steps)


def write_texts(
    path: Path,
    completions: list[dict],
    *,
    step: int = 0,
    split: str = r"[\s\S]",
    entropy=lambda row, count: np.full(count, 0.5),
) -> Path:
    """A trace of `prompt_id`, `sample`, `prompt`, `completion`, `reward` and so on."""
    rows, columns = [], {"token_id": [], "piece": [], "start": [], "end": [], "entropy": []}
    for completion in completions:
        spans = [match.span() for match in re.finditer(split, completion["completion"])]
        rows.append({"sample": 0, "truncated": False, **completion, "tokens": len(spans)})
        columns["token_id"] += [1] * len(spans)
        columns["piece"] += [completion["completion"][a:b].encode() for a, b in spans]
        columns["start"] += [a for a, _ in spans]
        columns["end"] += [b for _, b in spans]
        columns["entropy"] += list(entropy(completion, len(spans)))
    columns["delta"] = [value / 2 for value in columns["entropy"]]
    with TraceWriter(path, {"model": "by hand"}) as writer:
        writer.append(rows, columns, step=step)
    return path


def text_rows(*texts: tuple[str, float], **more: str) -> list[dict]:
    """Completions of one prompt, each with its reward."""
    return [
        {"prompt_id": "q", "prompt": "q", "sample": i, "completion": text, "reward": reward, **more}
        for i, (text, reward) in enumerate(texts)
    ]


def annotated(path: Path, selection: Selection, *annotators: Annotator) -> Annotations:
    """What annotators that compute say, in one order."""
    with AnnotationWriter(path, selection) as writer:
        propose(selection, annotators, writer, concurrency=1)
    return Annotations.read(path)


def placed_by_models(
    path: Path, selection: Selection, span: Span, *names: str, said: str = ""
) -> Annotations:
    """The same place in every completion, proposed by models of these names."""
    with AnnotationWriter(path, selection) as writer:
        for name in names:
            writer.add_annotator(name, {"kind": "model", "model": name})
            proposal = Proposal(name, Status.LOCATED, span, said, said, "now")
            for wrong, right in selection.pairs:
                error = Item(wrong.prompt_id, wrong.sample)
                for item, one in ((error, wrong), (error._replace(right=right.sample), right)):
                    writer.add_proposal(item, one.length, proposal)
    return Annotations.read(path)


def chain_rows(problems: list[ChainProblem], *, right: int = 2, wrong: int = 2) -> list[dict]:
    """Right and wrong completions of each problem; wrong ones err at steps 0, 1, ..."""
    rows = []
    for problem in problems:
        texts = [problem.solution] * right
        for number in range(wrong):
            text = with_error(problem, number % len(problem.operations))
            texts.append(text if text[-1] != problem.answer else text[:-1] + "=")
        for sample, text in enumerate(texts):
            rows.append(
                {
                    "prompt_id": problem.prompt,
                    "sample": sample,
                    "prompt": problem.prompt,
                    "completion": text,
                    "answer": problem.answer,
                    "reward": float(sample < right),
                }
            )
    return rows
