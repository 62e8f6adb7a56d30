"""Blame shares against raw columns, by code that shares nothing with the analysis."""

import json
import math

import numpy as np
import pytest
import torch

from acpo.annotate.annotations import Annotations
from acpo.annotate.annotators import ExactAnnotator
from acpo.annotate.pairs import select
from acpo.diagnose.blame import REGIONS, Shares, _rows, blame
from acpo.errors import ACPOError
from acpo.objectives import METHODS, group_advantages
from acpo.records import Trace, TraceWriter
from acpo.tasks.chain import ChainProblem, chain_problems
from annotate.traces import annotated, chain_rows
from commandline import acpo, refused
from diagnose.distributions import scalars, trace_columns

VOCAB = 12


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """Chains with real distributions: unsure at the first error of wrong completions."""
    folder = tmp_path_factory.mktemp("blame")
    generator = torch.Generator().manual_seed(0)
    rows, logits, tokens = [], [], []
    for row in chain_rows(chain_problems(12, seed=3), right=2, wrong=2):
        n = len(row["completion"])
        z = 3.0 * torch.randn(n, VOCAB, generator=generator, dtype=torch.float64)
        y = torch.multinomial(z.softmax(-1), 1, generator=generator)[:, 0]
        if not row["reward"]:
            at = error_of(row)
            z[at] *= 0.1
        rows.append({**row, "tokens": n, "truncated": False})
        logits.append(z)
        tokens.append(y)
    advantages = group_advantages([row["reward"] for row in rows], 4).tolist()
    z, y = torch.cat(logits), torch.cat(tokens)
    known = scalars(z, y)
    text = "".join(row["completion"] for row in rows)
    place = np.concatenate([np.arange(row["tokens"]) for row in rows])
    columns = trace_columns(known) | {"token_id": y.numpy(), "old_logp": known.logp}
    columns |= {"piece": [character.encode() for character in text]}
    columns |= {"start": place, "end": place + 1}
    rows = [{**row, "advantage": a} for row, a in zip(rows, advantages, strict=True)]
    header = {"model": "by hand", "method": "acpo", "vocab_size": VOCAB, "temperature": 1.0}
    with TraceWriter(folder / "trace", header) as writer:
        writer.append(rows, columns)
    trace = Trace.open(folder / "trace")
    torch.save((z, y), folder / "logits.pt")
    return trace, annotated(folder / "a.jsonl", select(trace), ExactAnnotator()), folder


@pytest.fixture(scope="module")
def finding(case):
    trace, annotations, _ = case
    return blame(trace, annotations)


def error_of(row) -> int:
    """The first character that differs from the solution."""
    solution = ChainProblem.parse(row["prompt"]).solution
    both = zip(solution, row["completion"], strict=True)
    return next(i for i, (a, b) in enumerate(both) if a != b)


def raw_shares(trace):
    """Per wrong completion: prompt, regions' tokens, and the shares of ACPO's negative update.

    At w = 1 the gate's slope is 1 and its value 2/τ. A token of a wrong completion moves, along
    e_y - p, by A times 1 - δ + 2p(v*)/1.05 where y is the mode, and by A · 3(1 - δ) where not.
    """
    columns = {k: v.tolist() for k, v in trace.tokens("log_pmax", "is_mode", "logp").items()}
    found, at = [], 0
    for row in trace.rollouts.to_pylist():
        here = range(at, at + row["tokens"])
        at += row["tokens"]
        if row["reward"] > 0:
            continue
        problem = ChainProblem.parse(row["prompt"])
        first = error_of(row)
        end = first + 1  # a step is four characters, and its result, the last, is what goes wrong
        assert (first - 4) % 4 == 0
        masses = []
        for token in here:
            p_max = math.exp(columns["log_pmax"][token])
            factor = 1 + 2 / 1.05 if columns["is_mode"][token] else 3
            masses.append(abs(row["advantage"]) * factor * p_max)
        total = sum(masses)
        parts = [sum(masses[:first]), sum(masses[first:end]), sum(masses[end:])]
        lengths = [first, end - first, row["tokens"] - end]
        assert len(problem.solution) == row["tokens"]
        found.append((row["prompt_id"], [p / total for p in parts], lengths))
    return found


def test_shares_are_those_of_the_raw_columns(case, finding):
    trace, _, _ = case
    raw = raw_shares(trace)
    assert len(raw) == len(finding.extra["completions"]) == 24
    for (prompt, shares, lengths), row in zip(raw, finding.extra["completions"], strict=True):
        assert row["prompt_id"] == prompt
        for region, share, length in zip(REGIONS, shares, lengths, strict=True):
            assert row[f"acpo update {region}"] == pytest.approx(share, rel=1e-5)
            assert row[f"chance {region}"] == pytest.approx(length / sum(lengths))
            assert row[f"sapo update {region}"] == pytest.approx(length / sum(lengths), rel=1e-5)
    for number, region in enumerate(REGIONS):
        by_prompt: dict[str, list[float]] = {}
        for prompt, shares, _ in raw:
            by_prompt.setdefault(prompt, []).append(shares[number])
        mean = sum(sum(v) / len(v) for v in by_prompt.values()) / len(by_prompt)
        row = row_of(finding, "acpo", region)
        assert row["share"] == pytest.approx(mean, rel=1e-5)
        assert row["low"] < mean < row["high"] and row["prompts"] == 12


def test_the_gradient_s_length_is_that_of_the_logits(case, finding):
    """SAPO's coefficient is the same everywhere: its gradient is as long as e_y - p."""
    trace, _, folder = case
    z, y = torch.load(folder / "logits.pt")
    direction = torch.nn.functional.one_hot(y, VOCAB) - z.softmax(-1)
    length = direction.square().sum(-1).sqrt().tolist()
    at, shares = 0, []
    for row in trace.rollouts.to_pylist():
        own = length[at : at + row["tokens"]]
        at += row["tokens"]
        if row["reward"] <= 0:
            shares.append(own[error_of(row)] / sum(own))
    found = [row["sapo gradient at"] for row in finding.extra["completions"]]
    assert found == pytest.approx(shares, rel=1e-5)


def row_of(finding, method, region, quantity="update"):
    wanted = (method, quantity, region)
    (row,) = [r for r in finding.rows if (r["method"], r["quantity"], r["region"]) == wanted]
    return row


def test_every_row_of_the_table_is_there_and_shares_are_whole(finding):
    assert {row["method"] for row in finding.rows} == set(METHODS)
    for row in finding.extra["completions"]:
        for method in METHODS:
            whole = sum(row[f"{method} credit {region}"] for region in REGIONS)
            assert whole == pytest.approx(1.0)
            whole = sum(row.get(f"{method} update {region}", math.nan) for region in REGIONS)
            assert math.isnan(whole) or whole == pytest.approx(1.0)
    updates, gradients, credits = (len(table.rows) for table in finding.tables)
    assert gradients == updates
    assert credits == len(METHODS) and updates >= len(METHODS) - 1
    assert (updates < len(METHODS)) == any("Without gtpo, update" in f for f in finding.facts)


def test_even_blame_is_chance_and_a_planted_gap_is_found(finding):
    """At the planted errors the policy is unsure, and ACPO lowers sure tokens of wrong answers."""
    even, ours = row_of(finding, "sapo", "at"), row_of(finding, "acpo", "at")
    assert even["excess"] == pytest.approx(0.0, abs=1e-6) and even["p_value"] > 0.9
    assert ours["excess"] < 0 and ours["p_value"] < 0.01
    assert row_of(finding, "8020", "at")["excess"] > 0, "its tokens are the unsure ones"
    facts = " ".join(finding.facts)
    assert "acpo: " in facts and "less than chance" in facts
    assert "acpo less sapo, at the error: -" in facts


def test_chance_is_that_of_the_completions_a_method_blames():
    """A completion that a method does not push down counts in neither of the two."""
    even = Shares(*(np.array(x) for x in ([0.5, 0.1], [0.3, 0.1], [0.2, 0.8])))
    some = Shares(*(np.array(x) for x in ([0.4, np.nan], [0.4, np.nan], [0.2, np.nan])))
    key = ("acpo", "update")
    rows = _rows({key: some}, even, ["a", "b"])
    assert [row["chance"] for row in rows] == [0.5, 0.3, 0.2]
    assert [row["completions"] for row in rows] == [1, 1, 1]


def test_what_a_trace_cannot_give_is_named(case, tmp_path):
    trace, _, _ = case
    rows = trace.rollouts.drop_columns(["step", "update"]).to_pylist()
    kept = ["token_id", "start", "end", "logp", "log_pmax", "is_mode", "entropy", "delta"]
    table = trace.table(*kept)
    off = {name: table[name].to_numpy() for name in kept}
    off["old_logp"] = off["logp"] - 0.1
    with TraceWriter(tmp_path / "t", {"method": "acpo"}) as writer:
        writer.append(rows, off)
    bare = Trace.open(tmp_path / "t")
    finding = blame(bare, annotated(tmp_path / "a.jsonl", select(bare), ExactAnnotator()))
    lacking = [fact for fact in finding.facts if fact.startswith("Without ")]
    for name in ("gtpo_entropy", "shannon, update", "sapo, gradient", "acpo_no_routing, update"):
        (fact,) = [one for one in lacking if name in one]
    assert "lacks what it takes in" in fact and len(lacking) < 6
    whole = row_of(finding, "acpo", "at")["completions"]
    assert whole == row_of(finding, "sapo", "at")["completions"] > 0
    assert not [row for row in finding.rows if row["method"] == "acpo_no_routing"
                and row["quantity"] == "update"]  # fmt: skip


def test_the_command_writes_table_and_figure(case, tmp_path):
    _, _, folder = case
    arguments = ["diagnose", "blame", folder / "trace"]
    arguments += ["--annotations", folder / "a.jsonl", "--output", tmp_path]
    assert "24 wrong completions of 12 prompts. Chance: " in acpo(*arguments)
    names = {"blame.csv", "blame.md", "blame.png", "blame.pdf", "blame-completions.csv"}
    assert {file.name for file in tmp_path.iterdir()} == names
    assert "| acpo |" in (tmp_path / "blame.md").read_text()
    assert "choose one" in refused(*arguments, "--verified-only", "--all-proposals")


def test_models_words_do_not_count_unless_asked(case, tmp_path):
    trace, _, folder = case
    lines = [json.loads(line) for line in (folder / "a.jsonl").read_text().splitlines()]
    lines[1]["settings"] = {"kind": "model"}
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    proposed = Annotations.read(tmp_path / "m.jsonl")
    with pytest.raises(ACPOError, match="no error counts"):
        blame(trace, proposed)


def test_all_takes_annotations_and_opens_with_a_sentence_each(case, tmp_path, no_pdf):
    _, _, folder = case
    arguments = ["diagnose", "all", folder / "trace", "--output", tmp_path]
    acpo(*arguments, "--annotations", folder / "a.jsonl")
    page = (tmp_path / "report.html").read_text()
    opening = page[: page.index("<h2")]
    for place in ("blame-at-the-error", "entropy-around-the-first-reasoning-error"):
        assert f'href="#{place}"' in opening and f'<h2 id="{place}">' in page
    assert "of its negative update falls on the error" in opening
    assert opening.count("<img") == page.count("<img") == opening.count("<h3>")
    assert "img{filter:invert" in page
    assert (tmp_path / "blame-completions.csv").exists()
