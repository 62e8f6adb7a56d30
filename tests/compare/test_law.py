"""Study L's analysis, on made-up runs whose answer is known; and its start policies' tables."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import law  # noqa: E402
import law_carry  # noqa: E402
import law_minds  # noqa: E402
import law_starts  # noqa: E402
from law_rules import Rule, fit_rule  # noqa: E402

sys.path.pop(0)  # modules there have the names of folders here

from acpo.tasks.chain import ALPHABET, ChainProblem, read_answer  # noqa: E402
from acpo.tasks.registry import get_task  # noqa: E402

STARTS = {"e0.02": 0.008, "e0.05": 0.014, "e0.1": 0.024, "e0.2": 0.045, "e0.5": 0.118}
"""Entropy by name, and mean delta."""


def made_up(
    root, study, benefit, *, ratios=("one", "eight"), starts=STARTS, seeds=8, variation=True
):
    """Runs of a study in which a row's benefit is `benefit(row, delta, rng)`, with noise."""
    rng = np.random.default_rng([len(study), ord(study[4])])
    folder = root / study
    folder.mkdir(parents=True)
    lines = []
    for start, delta in starts.items():
        for ratio in ratios:
            for seed in range(seeds):
                base = 0.7 + rng.normal(0, 0.02)
                for row in ("sapo", "acpo", "score_normalised"):
                    extra = 0.0 if row == "sapo" else benefit(row, delta, rng)
                    early = {"accuracy": 0.4 + rng.normal(0, 0.01), "positive_share": 0.5}
                    early |= {"delta": delta * (1 + rng.normal(0, 0.05)), "entropy": 4 * delta}
                    early |= {"score_variation": 0.02 / delta} if variation else {}
                    lines.append(run_line(f"{start}-{ratio}", row, seed, base + extra, early))
    (folder / "runs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def run_line(task, row, seed, accuracy, early, *, phase="study", start_model="a"):
    late = {name: 9.0 for name in early}
    return {
        "run": f"{task}/{phase}/{row}-seed{seed}",
        "spec": {"task": task, "phase": phase, "row": row, "seed": seed, "recipe": {}},
        "failed": None,
        "start_model": start_model,
        "curve": [{"step": 8, **early}, {"step": 16, **late}],
        "accuracy": {"value": accuracy},
    }


def lawful(row, delta, rng):
    """ACPO helps where delta is above 0.03, and harms below; ours helps by as much everywhere."""
    effect = (0.06 if delta > 0.03 else -0.08) if row == "acpo" else 0.05
    return effect + rng.normal(0, 0.02)


def lawless(row, delta, rng):
    return rng.normal(0, 0.03)


def settings_of(root, studies=(*law.FITTED, *law.TESTED)):
    return [one for name in studies for one in law.read_settings(root / name)]


def answer_of(root, studies=(*law.FITTED, *law.TESTED)):
    settings = settings_of(root, studies)
    return law.answer_text(settings, law.fit_rows(settings))


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    root = tmp_path_factory.mktemp("known")
    for study in (*law.FITTED, *law.TESTED):
        made_up(root, study, lawful)
    return root


@pytest.fixture(scope="module")
def known_answer(known):
    return answer_of(known)


def line_of(text, row):
    return next(line for line in text.splitlines() if line.startswith(f"| {row} |"))


def test_a_known_threshold_is_found_and_held_against_other_settings(known, known_answer):
    line = line_of(known_answer, "acpo")
    assert "rule, holds: use it where" in line and line.count("holds +") == 2, line
    settings = settings_of(known, law.FITTED)
    rule = fit_rule(settings, "acpo").rule
    chosen = {one.start for one in settings if rule.applies(one)}
    assert chosen == {"e0.2", "e0.5"} and rule.predictor in ("delta", "entropy", "score_variation")


def test_a_row_that_always_helps_gets_no_threshold(known_answer):
    line = line_of(known_answer, "score_normalised")
    assert "no rule; better on the whole, +" in line


def test_claims_are_counted(known_answer):
    assert "ACPO where delta below 0.1: 32 settings, 24 below SAPO, 8 above" in known_answer
    assert "ACPO where delta from 0.1: 8 settings, 0 below SAPO, 8 above" in known_answer
    assert "score_normalised where that is below 0.2: 8 settings" in known_answer


def test_without_a_law_there_is_no_rule(tmp_path):
    for study in (*law.FITTED, *law.TESTED):
        made_up(tmp_path, study, lawless)
    text = answer_of(tmp_path)
    for row in ("acpo", "score_normalised"):
        assert "no rule; not told apart" in line_of(text, row)


def test_chance_makes_a_rule_no_more_often_than_it_should():
    rng = np.random.default_rng(5)
    found = []
    for _ in range(60):
        settings = [
            law.Setting(
                study,
                start,
                ratio,
                {"delta": delta, "accuracy": rng.random()},
                row,
                {},
                frozenset(),
            )
            for study in law.FITTED
            for start, delta in STARTS.items()
            for luck in [rng.normal(0, 0.05)]  # of the start, which its ratios share
            for ratio in ("one", "four", "eight")
            for row in [{"acpo": {seed: luck + rng.normal(0, 0.02) for seed in range(4)}}]
        ]
        found.append(fit_rule(settings, "acpo").p)
    assert np.mean(np.array(found) <= 0.05) <= 0.12, "60 worlds: 5% and two standard deviations"
    assert np.mean(np.array(found) <= 0.5) >= 0.3, "and not because nothing is ever found"


def test_a_rule_that_fails_elsewhere_is_not_confirmed(tmp_path):
    for study in law.FITTED:
        made_up(tmp_path, study, lawful)
    for study in law.TESTED:
        made_up(tmp_path, study, lambda row, delta, rng: -lawful(row, delta, rng))
    line = line_of(answer_of(tmp_path), "acpo")
    assert "rule, not confirmed" in line and line.count("fails -") == 2


def test_few_settings_and_missing_predictors_are_said(tmp_path):
    few = dict(list(STARTS.items())[:2])
    for study in law.FITTED:
        made_up(tmp_path, study, lawful, starts=few, ratios=("eight",), variation=False)
    text = answer_of(tmp_path, law.FITTED)
    assert "too few settings yet (4)" in text
    assert "Not logged by every run, so not among the predictors: CV of n^(1/2)." in text


def test_the_answer_is_made_again_byte_for_byte(known, tmp_path):
    settings = [
        replace(
            one, tuned={"acpo": one.tuned["acpo"]}, predictors={"delta": one.predictors["delta"]}
        )
        for one in settings_of(known)
    ]
    for folder in ("one", "two"):
        law.write_answer(settings, tmp_path / folder)
    for name in ("law.md", "law.png"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_runs_are_paired_by_seed_and_start_and_failures_said(tmp_path):
    early = {"accuracy": 0.4, "delta": 0.01}
    lines = [run_line("e0.1-eight", "sapo", seed, 0.5 + seed / 10, early) for seed in range(3)]
    lines += [run_line("e0.1-eight", "acpo", seed, 0.4 + seed / 10, early) for seed in range(2)]
    lines += [run_line("e0.1-eight", "acpo", 2, 0.1, early, start_model="b")]
    lines += [run_line("e0.1-eight", "grpo", 0, 0.1, early) | {"failed": "nan"}]
    lines += [run_line("e0.1-eight", "acpo", 0, 0.7, early, phase="matched")]
    lines += [run_line("e0.1-eight", "fixed", seed, 0.5, early) for seed in range(3)]
    lines += [run_line("e0.1-eight", "fixed", seed, 0.5, early, phase="matched") for seed in (0, 1)]
    lines[-1] |= {"failed": "nan"}
    (tmp_path / "law-0.1m").mkdir()
    kept = tmp_path / "law-0.1m" / "runs.jsonl"
    kept.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (one,) = law.read_settings(kept.parent)
    assert one.tuned["acpo"] == pytest.approx({0: -0.1, 1: -0.1})
    assert one.matched["acpo"] == pytest.approx({0: 0.2})
    assert "fixed" not in one.matched and len(one.tuned["fixed"]) == 3, "that run was not tuned"
    law.write_answer([one], tmp_path)
    said = (tmp_path / "law.md").read_text()
    assert "e0.1, eight is provisional: of 3 seeds, paired so far acpo 2." in said
    assert one.failed == {"grpo"} and one.benefit("grpo") is None
    assert one.predictors == pytest.approx(early), "of the first ten updates alone"
    kept.write_text(kept.read_text() + json.dumps(lines[0]) + "\n")
    with pytest.raises(law.ACPOError, match=r"runs.jsonl:14: .* is there twice"):
        law.read_settings(kept.parent)


def test_studies_of_fewer_seeds_take_none_from_others():
    def setting(study, values):
        return law.Setting(study, "e0.1", "eight", {}, {"acpo": dict(enumerate(values))}, {}, set())

    first, second = [0.1, 0.3, 0.2, 0.4], [-0.1, 0.1]
    settings = [setting("law-0.1m", first), setting("law-1m", second)]
    found = law.pooled(settings, "acpo")
    parts = [law.mean_over_seeds([value / 2 for value in values]) for values in (first, second)]
    assert found.value == pytest.approx(0.125) and found.seeds == 6
    widths = [part.high - part.low for part in parts]
    assert found.high - found.low == pytest.approx(math.hypot(*widths))
    assert law.pooled(settings[:1], "acpo") == law.mean_over_seeds(first)
    assert law.pooled([setting("law-1m", [0.1])], "acpo").low is None
    assert "provisional" not in law.answer_text(settings, law.fit_rows(settings))


def test_rules_read_as_words():
    assert str(Rule("delta", False, 0.0345)) == "mean delta above 0.0345"


@pytest.mark.parametrize("task", law_minds.MINDS)
@pytest.mark.parametrize("entropy", [0.02, 0.5])
def test_a_mind_writes_what_it_was_solved_for(task, entropy):
    mind = law_minds.find_mind(task, entropy=entropy, accuracy=0.4)
    prompts, page = mind.draw(3000, np.random.default_rng(0))
    nats = np.mean([law_minds.entropy(chances) for chances in page.chances])
    letters = np.array(["", "", *ALPHABET])
    asked = ["".join(row) for row in letters[prompts]]
    written = ["".join(row) for row in letters[np.stack(page.drawn, 1)]]
    if task == "chain":
        right = [
            read_answer(text) == ChainProblem.parse(prompt).answer
            for prompt, text in zip(asked, written, strict=True)
        ]
    else:
        right = [
            law_carry.written_sums(text) == law_carry.column_sums(prompt)
            for prompt, text in zip(asked, written, strict=True)
        ]
    assert nats == pytest.approx(entropy, rel=0.06)
    assert np.mean(right) == pytest.approx(0.4, abs=0.035)


def test_an_impossible_mind_is_refused():
    with pytest.raises(ValueError, match="do not go together"):
        law_minds.find_mind("chain", entropy=0.9, accuracy=0.4)
    assert law_minds.find_mind("chain", entropy=0.9, accuracy=0.4, nearest=True).corrupted == 0


def test_the_second_task_judges_digits_and_not_copies():
    assert law_carry.column_sums("4729+8375:") == "2105"
    task = get_task(f"{ROOT / 'benchmarks' / 'law_carry.py'}:carry")
    row = next(iter(task.problems(0)))
    assert task.grader(task.gold(row), row)
    miscopied = "0" + task.gold(row)[1:]
    wrong = task.gold(row)[:-1] + str((int(row["answer"][-1]) + 1) % 10)
    assert task.grader(miscopied, row) and not task.grader(wrong, row)
    assert not task.grader(task.gold(row) + "1", row) and not task.grader("", row)


def test_starts_are_the_same_twice_and_kept(tmp_path, monkeypatch):
    import torch
    from safetensors.torch import load_file

    monkeypatch.setattr(law_starts, "PROBLEMS", 4)
    short = law_starts.Teaching(base=2, start=2, rate=1e-3, batch=4, rounds=2)
    monkeypatch.setitem(law_starts.TEACHING, "0.1m", short)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        made = law_starts.make_start("0.1m", "carry", 0.1, tmp_path / folder)
    name = "0.1m-carry-e0.1"
    first, second = (load_file(tmp_path / f / name / "model.safetensors") for f in ("one", "two"))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert all(torch.equal(one, one.bfloat16().float()) for one in first.values())
    assert not made["held"] and len(made["rounds"]) == 2, (
        "two updates teach nothing, and it says so"
    )
    assert {"accuracy", "entropy", "delta", "score_variation"} <= made.keys()
    assert made["parameters"] == 99_776 and json.dumps(made)
    monkeypatch.setattr(law_starts, "teach", None)
    assert law_starts.make_start("0.1m", "carry", 0.1, tmp_path / "two") == made
