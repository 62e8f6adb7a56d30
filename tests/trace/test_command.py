"""`acpo trace` and `acpo eval --trace`, from the shell to the trace."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BertConfig, BertLMHeadModel

from acpo.checkpoints import resolve_model
from acpo.errors import ACPOError, ACPOWarning
from acpo.records import TOKEN_COLUMNS, Trace, TraceWriter
from acpo.scoring import rollouts
from acpo.scoring.rollouts import prompt_id
from acpo.tasks.chain import ChainProblem, chain_task
from acpo.trace import write
from acpo.train.recipe import TaskArguments
from commandline import INTERRUPTED, acpo, refused
from evaluate.runs import sums
from evaluate.tinymodel import save
from tasks.tiny import chain_tokenizer

CHAIN = "package:acpo/tasks/checkpoints/chain"
SMALL = ["--task", "chain", "--n", 4, "--group", 8, "--max-tokens", 24, "--device", "cpu"]


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces") / "chain"
    said = acpo("trace", CHAIN, *SMALL, "--output", folder)
    return folder, said


def test_the_packaged_model_end_to_end(chain):
    folder, said = chain
    trace = Trace.open(folder)
    assert "32 completions of 4 prompts" in said and str(len(trace)) in said
    assert trace.columns == TOKEN_COLUMNS.keys()
    assert trace.header["vocab_size"] == 17 and trace.header["method"] == "acpo"
    rows = trace.rollouts.to_pylist()
    assert [row["sample"] for row in rows] == [*range(8)] * 4
    for i, row in enumerate(rows):
        problem = ChainProblem.parse(row["prompt"])
        assert row["answer"] == problem.answer
        assert row["reward"] == chain_task().grader(row["completion"], row)
        assert row["verdict"] == ("correct" if row["reward"] else "incorrect")
        own = trace.table("token_id", "piece", "start", "end")
        own = own.slice(trace.starts[i], row["tokens"])
        ended = own["token_id"][-1].as_py() == 1
        assert ended != row["truncated"] and row["tokens"] == len(row["completion"]) + ended
        assert own["piece"].to_pylist()[: len(row["completion"])] == [
            c.encode() for c in row["completion"]
        ]
        assert own["start"].to_pylist()[:3] == [0, 1, 2] and own["end"].to_pylist()[:3] == [1, 2, 3]
    rewards = np.array([row["reward"] for row in rows]).reshape(4, 8)
    expected = (rewards - rewards.mean(1, keepdims=True)) / (
        rewards.std(1, ddof=1, keepdims=True) + 1e-6
    )
    np.testing.assert_allclose([r["advantage"] for r in rows], expected.ravel(), atol=1e-9)
    assert len({row["completion"] for row in rows}) > 4, "completions of a group differ"


def test_a_trace_is_the_same_again(chain, tmp_path):
    acpo("trace", CHAIN, *SMALL, "--batch-size", 5, "--output", tmp_path / "again")
    one, two = Trace.open(chain[0]), Trace.open(tmp_path / "again")
    assert one.rollouts.equals(two.rollouts)
    for name in ("logp", "entropy", "tail_p2_logp"):
        np.testing.assert_allclose(
            two.tokens(name)[name], one.tokens(name)[name], rtol=1e-3, atol=1e-5
        )


def half_as_sure(folder):
    """The packaged model with half its logits."""
    place = resolve_model(CHAIN, folder)
    other = AutoModelForCausalLM.from_pretrained(place)
    with torch.no_grad():
        other.get_output_embeddings().weight.mul_(0.5)
    other.save_pretrained(folder)
    AutoTokenizer.from_pretrained(place).save_pretrained(folder)
    return folder


def test_a_killed_trace_goes_on_where_it_was(chain, tmp_path, monkeypatch):
    folder = tmp_path / "killed"
    monkeypatch.setattr(write, "PROMPTS_PER_PART", 1)
    real, calls = rollouts.score, []

    def dies(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(rollouts, "score", dies)
        acpo("trace", CHAIN, *SMALL, "--output", folder, status=INTERRUPTED)
    assert len(Trace.open(folder).parts) == 2
    said = refused("trace", half_as_sure(tmp_path / "other"), *SMALL, "--output", folder)
    assert "completions of another model" in said and "at step 0" in said
    said = acpo("trace", CHAIN, *SMALL, "--output", folder)
    assert "16 of 32 completions" in said and "32 of 32 completions" in said, "lines for a log"
    one, two = Trace.open(chain[0]), Trace.open(folder)
    assert len(two.parts) == 4 and one.rollouts.equals(two.rollouts.combine_chunks())
    for name in ("logp", "entropy", "credit"):
        ours, theirs = two.tokens(name)[name], one.tokens(name)[name]
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
    assert "holds step 0 already" in refused("trace", CHAIN, *SMALL, "--output", folder)


def test_one_process_at_a_time_samples_for_a_trace(tmp_path):
    """Two would both find the same prompts missing."""
    folder = tmp_path / "t"
    options = write.TraceOptions(2, 2, 1.0, 8, 0, "acpo", 0, 0)

    def watch(completions, total):
        assert total == 4
        with pytest.raises(ACPOError, match="another process writes"):
            TraceWriter(folder, {})

    write.write_sampled_trace(CHAIN, folder, TaskArguments(task="chain"), options, watch=watch)
    assert Trace.open(folder).rollouts.num_rows == 4


def test_an_output_that_cannot_be_is_told_before_anything_is_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr(write, "_sampled", None)
    (tmp_path / "file").touch()
    said = refused("trace", CHAIN, *SMALL, "--output", tmp_path / "file" / "t")
    assert "cannot be written" in said


def test_steps_of_training_in_one_trace(chain, tmp_path):
    folder = tmp_path / "steps"
    folder.mkdir()
    (folder / "header.jsonl").touch()  # a writer that died before its first line
    acpo("trace", CHAIN, *SMALL, "--output", folder)
    assert "holds step 0 already" in refused("trace", CHAIN, *SMALL, "--output", folder)
    acpo("trace", half_as_sure(tmp_path / "later"), *SMALL, "--step", 40, "--output", folder)
    trace = Trace.open(folder)
    assert [part["step"] for part in trace.parts] == [0, 40]
    ids = trace.rollouts["prompt_id"].to_pylist()
    assert ids[:32] == ids[32:]
    entropy = np.split(trace.tokens("entropy")["entropy"], [trace.starts[32]])
    assert entropy[1].mean() > 2 * entropy[0].mean(), "half the logits, more entropy"
    said = refused("trace", CHAIN, *SMALL, "--temperature", 0.5, "--step", 41, "--output", folder)
    assert "temperature=1.0, not 0.5" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nobody/nothing", "--task", "chain"], "cannot be loaded"),
        ([CHAIN, "--task", "chains"], "did you mean 'chain'"),
        ([CHAIN, "--task", "chain", "--method", "acpoo"], "did you mean 'acpo'"),
        ([CHAIN], "has no data of its own"),
        ([CHAIN, "--task", "chain", "--max-tokens", 5000], "--max-tokens"),
        ([CHAIN, "--task", "chain", "--step", 2**31], "--step"),
        ([CHAIN, "--samples", "nowhere"], "no such folder"),
        (["package:nowhere/x", "--task", "chain"], "not installed"),
        (["package:a.b.c/x", "--task", "chain"], "not installed"),
        (["package:/x", "--task", "chain"], "not installed"),
        ([CHAIN, "--task", "chain", "--max-tokens", 9, "--temperature", "inf"], "finite"),
        ([CHAIN, "--task", "chain", "--max-tokens", 9, "--device", "foo"], "cannot be loaded"),
        ([CHAIN, "--task", "chain", "--max-tokens", 9, "--chain-steps", 600], "leave it out"),
    ],
)
def test_bad_input_is_one_line(tmp_path, arguments, message):
    assert message in refused("trace", *arguments, "--output", tmp_path / "t")


def test_a_model_that_is_not_there_is_told_without_what_only_eval_takes(tmp_path):
    said = refused("trace", tmp_path / "none", "--task", "chain", "--output", tmp_path / "t")
    assert "is no folder here" in said and "--base-url" not in said


def test_the_model_here_has_the_name_of_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(half_as_sure(tmp_path / "mine"))
    acpo("trace", ".", *SMALL)
    assert Trace.open("traces/mine").rollouts.num_rows == 32


def test_more_prompts_than_there_are(tmp_path):
    save(tmp_path / "model")
    data = sums(tmp_path / "sums.jsonl", 3)
    said = refused(
        "trace", tmp_path / "model", "--data", data, "--n", 4, "--output", tmp_path / "t"
    )
    assert "--n 4: the data has 3 problems; --n 3 takes them all" in said


def test_where_nobody_says_how_many_all_of_fewer_are_taken(tmp_path):
    save(tmp_path / "model")
    data = sums(tmp_path / "sums.jsonl", 3)
    run = ("--data", data, "--group", 2, "--max-tokens", 4, "--output", tmp_path / "t")
    with pytest.warns(ACPOWarning, match="the data has 3 problems: all are taken, and not 48"):
        said = acpo("trace", tmp_path / "model", *run, "--device", "cpu")
    assert "6 of 6 completions" in said and Trace.open(tmp_path / "t").header["n"] == 3


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """An evaluation of a model that writes bytes at random, with its trace."""
    folder = tmp_path_factory.mktemp("evaluated")
    save(folder / "model")
    data = sums(folder / "sums.jsonl", 3)
    acpo(
        *("eval", folder / "model", "--benchmarks", data, "--k", 3, "--max-tokens", 12),
        *("--temperature", 0.9, "--output", folder / "run", "--trace", folder / "trace"),
        *("--device", "cpu", "--workers", 1),
    )
    return folder


def test_eval_writes_a_trace_of_its_samples(evaluated):
    trace = Trace.open(evaluated / "trace")
    assert trace.columns == TOKEN_COLUMNS.keys()
    assert trace.header["source"] == "eval" and trace.header["temperature"] == 0.9
    lines = [json.loads(line) for line in (evaluated / "run" / "sums.jsonl").open()][1:]
    samples = {(line["question"], line["sample"]): line for line in lines}
    rows = trace.rollouts.to_pylist()
    assert len(rows) == len(samples) == 9
    for i, row in enumerate(rows):
        sample = samples[row["prompt_id"], row["sample"]]
        own = trace.table("token_id").slice(trace.starts[i], row["tokens"])
        assert own["token_id"].to_pylist() == sample["ids"]
        assert row["completion"] == sample["completion"]
        assert row["verdict"] == sample["verdict"] and row["answer"] == str(
            2 * int(row["prompt_id"]) + 1
        )
        assert row["prompt"].startswith("<user>") and sample["prompt"] in row["prompt"]
        assert row["truncated"] == (sample["finish"] == "length")
    assert any("\N{REPLACEMENT CHARACTER}" in row["completion"] for row in rows)


def test_draws_from_a_part_of_the_policy_have_no_old_logp(evaluated, tmp_path):
    acpo(
        *("eval", evaluated / "model", "--benchmarks", evaluated / "sums.jsonl", "--k", 2),
        *("--max-tokens", 4, "--top-p", 0.3, "--output", tmp_path / "run", "--device", "cpu"),
        *("--trace", tmp_path / "trace", "--workers", 1),
    )
    trace = Trace.open(tmp_path / "trace")
    assert "old_logp" not in trace.columns and trace.header["top_p"] == 0.3


def test_questions_of_two_files_are_not_confused(evaluated, tmp_path):
    """Files without ids number their rows: each keeps its own prompts and golds."""
    first = sums(tmp_path / "first.jsonl", 2)
    second = tmp_path / "second.jsonl"
    second.write_text('{"problem": "Name a digit.", "answer": 7}\n')
    acpo(
        *("eval", evaluated / "model", "--benchmarks", f"{first},{second}", "--k", 2),
        *("--max-tokens", 4, "--output", tmp_path / "run", "--trace", tmp_path / "trace"),
        *("--device", "cpu", "--workers", 1, "--temperature", 0.9),
    )
    rows = Trace.open(tmp_path / "trace").rollouts.to_pylist()
    golds = {row["prompt_id"]: (row["answer"], "digit" in row["prompt"]) for row in rows}
    assert golds == {"first/0": ("1", False), "1": ("3", False), "second/0": ("7", True)}
    assert len({(row["prompt_id"], row["sample"]) for row in rows}) == len(rows) == 6


def test_samples_scored_by_another_model_have_no_old_logp(evaluated, tmp_path):
    acpo(
        "trace", evaluated / "model", "--samples", evaluated / "run", "--output", tmp_path / "same"
    )
    same = Trace.open(tmp_path / "same")
    before = Trace.open(evaluated / "trace")
    np.testing.assert_array_equal(
        same.tokens("logp")["logp"], before.tokens("old_logp")["old_logp"]
    )
    save(tmp_path / "other", seed=5)
    acpo(
        "trace",
        tmp_path / "other",
        "--samples",
        evaluated / "run",
        "--output",
        tmp_path / "other-trace",
    )
    other = Trace.open(tmp_path / "other-trace")
    assert other.columns == TOKEN_COLUMNS.keys() - {"old_logp"}
    assert not np.allclose(other.tokens("logp")["logp"], before.tokens("logp")["logp"])


def test_samples_scored_again_replace_the_trace_once_they_are_whole(
    evaluated, tmp_path, monkeypatch
):
    def dies(*given, **options):
        raise KeyboardInterrupt

    again = ["trace", evaluated / "model", "--samples", evaluated / "run", "--output"]
    acpo(*again, tmp_path / "t")
    with monkeypatch.context() as patched:
        patched.setattr(rollouts, "score", dies)
        acpo(*again, tmp_path / "t", status=INTERRUPTED)
    assert Trace.open(tmp_path / "t").rollouts.num_rows == 9
    acpo(*again, tmp_path / "t")
    assert Trace.open(tmp_path / "t").rollouts.num_rows == 9
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_samples_of_another_tokenizer_are_refused(evaluated, tmp_path):
    """As many tokens, each in another's place: every id is one, and says another text."""
    other = save(tmp_path / "other", seed=5)
    words = json.loads((other / "tokenizer.json").read_text())
    vocabulary = words["model"]["vocab"]
    names = [name for name, number in vocabulary.items() if number > 1]
    vocabulary |= {
        name: vocabulary[after] for name, after in zip(names, names[1:] + names[:1], strict=True)
    }
    (other / "tokenizer.json").write_text(json.dumps(words))
    said = refused("trace", other, "--samples", evaluated / "run", "--output", tmp_path / "t")
    assert "drawn with another tokenizer" in said


def test_samples_left_out_are_told(evaluated, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    lines = (evaluated / "run" / "sums.jsonl").read_text().splitlines(keepends=True)
    (run / "sums.jsonl").write_text("".join(lines[:-1]))
    with pytest.warns(ACPOWarning, match="2 of 8 samples are left out"):
        acpo("trace", evaluated / "model", "--samples", run, "--output", tmp_path / "t")
    assert Trace.open(tmp_path / "t").rollouts.num_rows == 6


@pytest.mark.parametrize(
    ("line", "change", "said"),
    [
        (0, {"settings": {"temperature": 0.9}}, "does not say its"),
        (0, {"settings": 3}, "not a file of samples"),
        (1, {"verdict": "splendid"}, "not a line of samples as"),
        (1, {"prompt": None}, "not a line of samples as"),
        (1, {"completion": 3}, "not a line of samples as"),
        (1, {"question": ["a"]}, "question must be text"),
    ],
)
def test_damaged_samples_are_told(evaluated, tmp_path, line, change, said):
    rows = [json.loads(text) for text in (evaluated / "run" / "sums.jsonl").open()]
    rows[line] |= change
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model, out = evaluated / "model", tmp_path / "t"
    assert said in refused("trace", model, "--samples", tmp_path, "--output", out)


def test_a_trace_has_one_policy(evaluated, tmp_path):
    rows = [json.loads(text) for text in (evaluated / "run" / "sums.jsonl").open()]
    for name, temperature in (("cold", 0.1), ("hot", 2.0)):
        rows[0]["settings"]["temperature"] = temperature
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model, out = evaluated / "model", tmp_path / "t"
    found = refused("trace", model, "--samples", tmp_path, "--output", out)
    assert "cold was drawn with temperature=0.1, hot with 2.0" in found


def test_samples_of_a_server_are_refused(evaluated, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    lines = (evaluated / "run" / "sums.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows[1:]:
        del row["ids"]
    (run / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = refused("trace", evaluated / "model", "--samples", run, "--output", tmp_path / "t")
    assert "without token ids" in said
    said = refused("eval", "x", "--base-url", "http://localhost:1/v1", "--trace", tmp_path / "t")
    assert "needs --backend transformers" in said


def test_prompts_have_the_name_training_gives_them(chain):
    trace = Trace.open(chain[0])
    row = trace.rollouts.slice(0, 1).to_pylist()[0]
    assert row["prompt_id"] == prompt_id(chain_tokenizer()(row["prompt"])["input_ids"])


def test_what_samples_do_not_take_is_refused(evaluated, tmp_path):
    scoring = ["--samples", evaluated / "run", "--output", tmp_path / "t", "--top-k", 2]
    others = ["--step", 3, "--temperature", 1.0, "--n", 48, "--no-chat"]
    said = refused("trace", evaluated / "model", *scoring, *others)
    assert "leave out --chat, --n, --step, --temperature" in said
    assert not (tmp_path / "t").exists()
    acpo("trace", evaluated / "model", *scoring, "--method", "sapo", "--batch-size", 2)


def test_a_layer_before_the_head_is_refused_by_all_that_score(evaluated, tmp_path):
    model = save(tmp_path / "model")
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=258, **shape, intermediate_size=64, is_decoder=True)
    BertLMHeadModel(config).save_pretrained(model)
    theirs = tmp_path / "1.jsonl"
    theirs.write_text('{"input": "1+2=", "output": "3"}\n')
    for arguments in (
        ("trace", model, "--data", evaluated / "sums.jsonl", "--n", 1, "--max-tokens", 4),
        ("trace", model, "--samples", evaluated / "run"),
        ("import", theirs, "--model", model),
    ):
        assert "not its output head" in refused(*arguments, "--output", tmp_path / "t")
        assert not (tmp_path / "t").exists()
