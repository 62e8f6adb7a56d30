"""Other trainers' rollouts become traces; files that are not theirs are told so."""

import json
import pickle
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from acpo.checkpoints import load_tokenizer, resolve_model
from acpo.errors import ACPOError, ACPOWarning
from acpo.method_columns import method_columns
from acpo.objectives import METHODS
from acpo.records import Trace
from acpo.scoring import rollouts
from acpo.trace.imports import read_rollouts
from commandline import INTERRUPTED, REFUSED, acpo

CHAIN = "package:acpo/tasks/checkpoints/chain"
PROMPTS = ["3+6+6+6*6*5:", "9*7-8*4+1-2:"]
TEXTS = ["3+6=9+6=5+6=1*6=6*5=0", "3+6=8+6=4+6=0*6=0*5=0", "9*7=3"]


def run(*arguments, status=0):
    return acpo("import", *arguments, "--model", CHAIN, "--device", "cpu", status=status)


def verl(folder):
    """One file per step, as verl's trainers dump them; groups of two and of one."""
    folder.mkdir()
    for step in (1, 2):
        rows = [
            {"input": PROMPTS[0], "output": TEXTS[0], "gts": "0", "score": 1.0, "step": step},
            {"input": PROMPTS[0], "output": TEXTS[1], "gts": "0", "score": 0.0, "step": step},
            {"input": PROMPTS[1], "output": TEXTS[2], "gts": "9", "score": 0.0, "step": step},
        ]
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def trl(folder):
    (folder / "completions").mkdir(parents=True)
    table = {
        "step": [5, 5],
        "prompt": [PROMPTS[0], PROMPTS[0]],
        "completion": TEXTS[:2],
        "chain_reward": [1.0, 0.0],
        "format_reward": [0.5, None],
        "advantage": [0.7, -0.7],
    }
    pq.write_table(pa.table(table), folder / "completions" / "completions_00005.parquet")
    return folder


def tokens():
    """Prompts and texts as the packaged model's tokens."""
    read = load_tokenizer(resolve_model(CHAIN, "nowhere"))
    return [read(text, add_special_tokens=False)["input_ids"] for text in (PROMPTS[0], *TEXTS[:2])]


def prime_rl(folder):
    """As its trainer exports them: whole sequences, with the mask of what is trained on."""
    prompt, *completions = tokens()
    rows = []
    for reward, ids in zip((1.0, 0.0), completions, strict=True):
        before, after = len(prompt), len(ids)
        rows.append(
            {
                **{"schema_version": 1, "step": 3, "export_step": 3, "rank": 0, "env_name": "x"},
                "token_ids": [*prompt, *ids, 0],
                "loss_mask": [False] * before + [True] * after + [False],
                "rewards": [None] * before + [reward] * after + [None],
                "inference_logprobs": [0.0] * before + [-0.25] * after + [0.0],
                "trainer_logprobs": [0.0] * (before + after + 1),
            }
        )
    (folder / "token_exports" / "step_3").mkdir(parents=True)
    file = folder / "token_exports" / "step_3" / "rank_0.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def slime(folder, **changes):
    prompt, *completions = tokens()
    samples = [
        {
            **{"group_index": 0, "index": number, "prompt": PROMPTS[0], "response": TEXTS[number]},
            **{"tokens": prompt + ids, "response_length": len(ids), "label": "0"},
            **{"reward": 1.0 - number, "status": "truncated", "loss_mask": None, "metadata": {}},
            "rollout_log_probs": [-0.25] * len(ids),
        }
        | changes
        for number, ids in enumerate(completions)
    ]
    folder.mkdir()
    torch.save({"rollout_id": 7, "samples": samples}, folder / "rollout_7.pt")
    return folder


@pytest.mark.parametrize(("make", "step"), [(prime_rl, 3), (slime, 7)])
def test_tokens_that_were_drawn_stay_with_their_log_probabilities(tmp_path, make, step):
    source = make(tmp_path / "theirs")
    run(source, "--output", tmp_path / "t")
    trace = Trace.open(tmp_path / "t")
    rows = trace.rollouts.to_pylist()
    assert [row["step"] for row in rows] == [step, step]
    assert [row["completion"] for row in rows] == TEXTS[:2]
    assert [row["reward"] for row in rows] == [1.0, 0.0] and rows[0]["prompt"] == PROMPTS[0]
    assert [row["truncated"] for row in rows] == [make is slime] * 2
    assert trace.header["retokenised"] is False
    _, *completions = tokens()
    assert trace.tokens("token_id")["token_id"].tolist() == [*completions[0], *completions[1]]
    old, now = trace.tokens("old_logp", "logp").values()
    assert (old == -0.25).all() and np.isfinite(now).all() and (now != old).any()
    assert np.isfinite(method_columns(trace, "acpo").update).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"response_length": -1},
        {"response_length": 10**6},
        {"tokens": ["a"] * 30},
        {"rollout_log_probs": [0.0]},
        {"reward": None, "response_length": None},
    ],
)
def test_damaged_dumps_are_told(tmp_path, changes):
    source = slime(tmp_path / "theirs", **changes)
    with pytest.raises(ACPOError, match=r"rollout_7\.pt"):
        read_rollouts(source)


@pytest.mark.parametrize(
    ("make", "steps", "rewards"),
    [(verl, [1, 1, 1, 2, 2, 2], ()), (trl, [5, 5], ("chain_reward", "format_reward"))],
)
def test_rollouts_become_a_trace_of_the_same_texts(tmp_path, make, steps, rewards):
    source = make(tmp_path / "theirs")
    run(source, "--output", tmp_path / "t", *(f"--reward={name}" for name in rewards))
    trace = Trace.open(tmp_path / "t")
    rows = trace.rollouts.to_pylist()
    assert [row["step"] for row in rows] == steps
    assert [row["completion"] for row in rows[:2]] == TEXTS[:2]
    assert rows[0]["prompt"] == PROMPTS[0] and rows[0]["prompt_id"] == rows[1]["prompt_id"]
    assert rows[0]["reward"] == (1.0 if make is verl else 1.5) and rows[0]["advantage"] > 0
    assert trace.header["retokenised"] is True and "old_logp" not in trace.columns
    assert np.isfinite(method_columns(trace, "acpo").update).all()
    assert "holds a trace already" in run(source, "--output", tmp_path / "t", status=REFUSED)


def test_what_a_reward_function_logs_is_no_reward_where_rewards_are_named(tmp_path):
    source = trl(tmp_path / "theirs")
    with pytest.warns(ACPOWarning, match=r"reward is chain_reward \+ format_reward, every column"):
        assert [one.reward for one in read_rollouts(source)[5]] == [1.5, 0.0]
    assert [one.reward for one in read_rollouts(source, ["chain_reward"])[5]] == [1.0, 0.0]
    weighted = ["chain_reward", "format_reward=0.2"]
    assert [one.reward for one in read_rollouts(source, weighted)[5]] == [1.1, 0.0]
    for number in ("", "much", "nan"):
        with pytest.raises(ACPOError, match=f"--reward format_reward={number}: '{number}' is no"):
            read_rollouts(source, [f"format_reward={number}"])
    with pytest.raises(ACPOError, match=r"--reward length: .* has chain_reward, format_reward"):
        read_rollouts(source, ["length"])
    with pytest.raises(ACPOError, match=r"--reward chain_reward: .* is not TRL's"):
        read_rollouts(verl(tmp_path / "others"), ["chain_reward"])


def test_a_run_s_own_log_beside_its_completions_is_not_taken_for_verl_s(tmp_path):
    folder = trl(tmp_path / "run")
    (folder / "log.jsonl").write_text(json.dumps({"step": 5, "reward": 0.5}) + "\n")
    assert [*read_rollouts(folder, ["chain_reward"])] == [5]


def test_a_rollout_that_trl_wrote_at_several_logs_counts_once(tmp_path):
    folder = trl(tmp_path / "theirs") / "completions"
    table = pq.read_table(folder / "completions_00005.parquet").to_pydict()
    for step in (6, 7, 8):
        table |= {"step": [step] * 2}
        if step == 7:
            table |= {"completion": TEXTS[1:]}
        pq.write_table(pa.table(table), folder / f"completions_{step:05}.parquet")
    assert [*read_rollouts(folder.parent, ["chain_reward"])] == [5, 7]


BAD = {
    "1.jsonl": "{not json}\n",
    "2.jsonl": '{"output": "x"}\n',
    "3.jsonl": '{"input": "p", "output": 3}\n',
    "4.jsonl": '{"input": "p", "output": "x", "score": "high"}\n',
    "5.jsonl": '{"input": "p", "output": "x", "step": -1}\n',
    "6.jsonl": "[1, 2]\n",
    "7.jsonl": '{"input": "p", "output": "x", "score": 1' + "0" * 400 + "}\n",
    "8.jsonl": '{"input": [1, 2], "output": "x"}\n',
    "9.jsonl": '{"input": "p", "output": "x", "step": 1' + "0" * 30 + "}\n",
    "rank_1.jsonl": '{"step": 1, "loss_mask": [true], "token_ids": 1}\n',
    "rank_2.jsonl": '{"step": 1, "loss_mask": [true], "token_ids": ["x"]}\n',
    **{
        f"rank_{number}.jsonl": json.dumps(
            {"step": 1, "token_ids": [1, 2], "loss_mask": [0, 1], "rewards": [1.0], **damage}
        )
        for number, damage in enumerate(
            [
                {"loss_mask": [0]},
                {"loss_mask": [0, 1, 1]},
                {"loss_mask": [0, "0"]},
                {"inference_logprobs": [0.0, 5.0]},
                {"inference_logprobs": [0.0, float("nan")]},
                {"rewards": "10"},
            ],
            start=3,
        )
    },
    "completions_1.parquet": "PAR1 and no more",
}


@pytest.mark.parametrize("name", BAD)
def test_files_that_are_not_theirs(tmp_path, name):
    (tmp_path / name).write_text(BAD[name])
    with pytest.raises(ACPOError, match=name):
        read_rollouts(tmp_path)


@pytest.mark.parametrize("text", ["Привет", "<b>3+6=9</b>"])
def test_text_that_the_model_has_no_tokens_for_is_refused(tmp_path, text):
    verl(tmp_path / "dump")
    with (tmp_path / "dump" / "1.jsonl").open("a") as file:
        file.write(json.dumps({"input": PROMPTS[0], "output": text, "score": 0.0}) + "\n")
    said = run(tmp_path / "dump", "--output", tmp_path / "trace", status=REFUSED)
    assert "cannot read the completions, its tokenizer makes" in " ".join(said.split())
    assert not (tmp_path / "trace").exists()


def test_what_is_wrong_is_said_once(tmp_path):
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    (folder / "1.jsonl").write_text('{"input": "p", "output": "x", "score": "high"}\n')
    with pytest.raises(ACPOError, match=r"1\.jsonl: row 1 is not verl's \(.*high") as told:
        read_rollouts(folder)
    assert "its trainer" not in str(told.value)
    (folder / "1.jsonl").write_text('{"output": "x"}\n')
    with pytest.raises(ACPOError, match=r"row 1 is not verl's \('input' is missing\)"):
        read_rollouts(folder)


def test_prime_rl_may_have_kept_no_log_probabilities(tmp_path):
    file = prime_rl(tmp_path) / "token_exports" / "step_3" / "rank_0.jsonl"
    rows = [json.loads(line) | {"inference_logprobs": None} for line in file.open()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [rollout.old_logp for rollout in read_rollouts(tmp_path)[3]] == [None, None]


def test_rows_without_a_sampled_token_are_left_out(tmp_path):
    """Blank lines, sequences nothing is trained on, empty completions; the rest is kept."""
    file = prime_rl(tmp_path / "theirs") / "token_exports" / "step_3" / "rank_0.jsonl"
    rows = [json.loads(line) for line in file.open()]
    empty = rows[0] | {"loss_mask": [False] * len(rows[0]["loss_mask"])}
    file.write_text("".join(json.dumps(row) + "\n" for row in (*rows, empty)) + "\n")
    run(tmp_path / "theirs", "--output", tmp_path / "t")
    trace = Trace.open(tmp_path / "t")
    assert trace.rollouts.num_rows == 2 and "old_logp" in trace.columns


def test_completions_that_are_all_empty_are_no_trace(tmp_path):
    source = tmp_path / "1.jsonl"
    source.write_text(json.dumps({"input": PROMPTS[0], "output": ""}) + "\n")
    for _ in range(2):
        said = run(source, "--output", tmp_path / "t", status=REFUSED)
        assert "no completion has a token" in " ".join(said.split())
    assert not (tmp_path / "t").exists()


def test_the_reward_of_an_empty_completion_is_one_of_its_group(tmp_path):
    row = {"input": PROMPTS[0], "output": TEXTS[0], "score": 1.0}
    (tmp_path / "1.jsonl").write_text(
        "".join(json.dumps(row | own) + "\n" for own in ({}, {"output": "", "score": 0.0}))
    )
    run(tmp_path / "1.jsonl", "--output", tmp_path / "t")
    trace = Trace.open(tmp_path / "t")
    assert trace.rollouts["tokens"].to_pylist() == [len(TEXTS[0]), 0]
    found = trace.rollouts["advantage"].to_pylist()
    assert found == pytest.approx([0.5**0.5, -(0.5**0.5)], abs=1e-3)
    assert (trace.tokens("advantage")["advantage"] == np.float32(found[0])).all()


@pytest.mark.parametrize(
    "said",
    [
        [{"role": "assistant", "content": "3", "reasoning_content": "1+2"}],
        [{"role": "assistant", "content": None, "tool_calls": [{"type": "function"}]}],
        [{"role": "assistant", "content": "3"}, {"role": "tool", "content": "4"}],
    ],
)
def test_messages_that_hold_more_than_the_text_are_refused(tmp_path, said):
    prompt = [{"role": "user", "content": "1+2="}]
    table = pa.table({"step": [1], "prompt": [prompt], "completion": [said]})
    pq.write_table(table, tmp_path / "completions_1.parquet")
    with pytest.raises(ACPOError, match=r"completions_1\.parquet: .* cannot be told"):
        read_rollouts(tmp_path)


def test_plain_prompts_begin_as_the_tokenizer_has_texts_begin(tmp_path):
    """Llama's and Gemma's tokenizers put a token in front, without which they are other models."""
    folder = shutil.copytree(resolve_model(CHAIN, "nowhere"), tmp_path / "model")
    file = folder / "tokenizer.json"
    read = json.loads(file.read_text())
    start = {"SpecialToken": {"id": "<eos>", "type_id": 0}}
    read["post_processor"]["single"].insert(0, start)
    known = {"id": "<eos>", "ids": [1], "tokens": ["<eos>"]}
    read["post_processor"]["special_tokens"] = {"<eos>": known}
    file.write_text(json.dumps(read))
    source = verl(tmp_path / "theirs")
    acpo("import", source, "--model", folder, "--output", tmp_path / "t")
    prompts = Trace.open(tmp_path / "t").rollouts["prompt"].to_pylist()
    assert prompts[0] == "<eos>" + PROMPTS[0]


def test_an_import_that_failed_is_begun_again_with_other_options(tmp_path):
    """Its `.partial` was refused as made with another temperature: a folder that nobody named."""
    empty = tmp_path / "1.jsonl"
    empty.write_text(json.dumps({"input": PROMPTS[0], "output": ""}) + "\n")
    run(empty, "--output", tmp_path / "t", "--temperature", "0.5", status=REFUSED)
    run(verl(tmp_path / "theirs"), "--output", tmp_path / "t")
    assert Trace.open(tmp_path / "t").header["temperature"] == 1.0
    assert not (tmp_path / "t.partial").exists()


def test_chats_that_lost_their_special_tokens_are_told(tmp_path):
    """verl decodes prompts without them, and chats were scored so without a word."""
    folder = shutil.copytree(resolve_model(CHAIN, "nowhere"), tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    source = verl(tmp_path / "theirs")
    with pytest.warns(ACPOWarning, match="no prompt has a special token"):
        acpo("import", source, "--model", folder, "--output", tmp_path / "t")


def test_texts_the_model_cannot_read_are_told(tmp_path):
    long = tmp_path / "1.jsonl"
    long.write_text(json.dumps({"input": PROMPTS[0], "output": "3" * 1024}) + "\n")
    said = run(long, "--output", tmp_path / "t", status=REFUSED)
    assert "positions" in said
    chat = tmp_path / "completions_1.parquet"
    prompt, said = [{"role": "user", "content": "1+2="}], [{"role": "assistant", "content": "3"}]
    pq.write_table(pa.table({"step": [1], "prompt": [prompt], "completion": [said]}), chat)
    assert "chat template" in run(chat, "--output", tmp_path / "t", status=REFUSED)


def test_halves_of_characters_are_replaced(tmp_path):
    source = tmp_path / "1.jsonl"
    source.write_text(json.dumps({"input": PROMPTS[0] + "\ud800", "output": "3\udc00"}) + "\n")
    run(source, "--output", tmp_path / "t")
    assert Trace.open(tmp_path / "t").rollouts["tokens"].to_pylist() == [2]


class Attack:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (open, (self.file, "w"))


def test_pickles_that_act_are_refused_and_do_nothing(tmp_path):
    """As torch saves them, as plain pickles, and as no pickle at all."""
    hit = tmp_path / "hit"
    torch.save({"samples": [Attack(str(hit))]}, tmp_path / "rollout_0.pt")
    for content in (None, pickle.dumps(Attack(str(hit))), b"cos\nsystem\n(S'true'\ntR.", b""):
        if content is not None:
            (tmp_path / "rollout_0.pt").write_bytes(content)
        with pytest.raises(ACPOError, match=r"rollout_0\.pt"):
            read_rollouts(tmp_path)
    assert not hit.exists()


def test_a_folder_of_nobody_is_told(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    for source in (tmp_path, tmp_path / "notes.txt", tmp_path / "nowhere"):
        with pytest.raises(ACPOError, match="none of verl's"):
            read_rollouts(source)


@pytest.mark.parametrize("score", ["NaN", "Infinity", "-Infinity"])
def test_rewards_that_are_no_numbers_are_none(tmp_path, score):
    (tmp_path / "1.jsonl").write_text(f'{{"input": "p", "output": "x", "score": {score}}}\n')
    (rollout,) = read_rollouts(tmp_path)[1]
    assert rollout.reward is None


def test_a_killed_import_is_no_trace_and_starts_over(tmp_path, monkeypatch):
    source = verl(tmp_path / "theirs")
    arguments = (source, "--output", tmp_path / "t")
    real, calls = rollouts.score, []

    def dies(*given, **options):
        calls.append(options)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*given, **options)

    monkeypatch.setattr(rollouts, "score", dies)
    run(*arguments, "--method", "acpo", status=INTERRUPTED)
    assert not (tmp_path / "t").exists(), "one step of two"
    run(*arguments)
    assert [part["step"] for part in Trace.open(tmp_path / "t").parts] == [1, 2]
    assert {path.name for path in tmp_path.iterdir()} == {"theirs", "t"}
    assert all(options["align_tol"] == METHODS["acpo"].options["align_tol"] for options in calls)
