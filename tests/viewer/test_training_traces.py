"""The page of what training recorded: every step, rewards without verdicts, diverged policies."""

import numpy as np
import pytest

from acpo.method_columns import method_columns
from acpo.records import Trace, TraceWriter
from acpo.viewer.payload import chat_template, last_user_turn
from viewer.test_credit import blocks
from viewer.traces import write_trace

CHAT = (
    "<|im_start|>system\nYou are kind.<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)


def columns(count, seed=0, **more):
    rng = np.random.default_rng(seed)
    logp = -rng.exponential(0.5, count)
    found = {
        "token_id": np.arange(count) % 7,
        "piece": [f" w{i}".encode() for i in range(count)],
        "logp": logp,
        "old_logp": logp,
        "log_pmax": np.maximum(logp, -0.7),
        "is_mode": logp >= -0.7,
        "entropy": rng.exponential(0.5, count),
    }
    return {**found, "delta": -np.expm1(found["log_pmax"]), **more}


def write_run(path, *, steps=5, prompts=8, rewards=(1.0, 0.0, 0.0, 0.0), prompt="ask {}", **more):
    """As training records it: new prompts at every step, rewards and no verdicts."""
    with TraceWriter(path, {"source": "train", "method": "acpo", "model": "m"}) as writer:
        for step in range(steps):
            rows = [
                {
                    "prompt_id": f"s{step}q{q}",
                    "sample": sample,
                    "prompt": prompt.format(f"{step}-{q}"),
                    "reward": reward,
                    "advantage": reward - float(np.mean(rewards)),
                    "tokens": 6,
                }
                for q in range(prompts)
                for sample, reward in enumerate(rewards)
            ]
            writer.append(rows, columns(6 * len(rows), step, **more), step=step)
    return path


def paint(browser):
    """Every token, as for print."""
    browser.run("window.dispatchEvent(new Event('beforeprint'))")


def test_a_run_shows_all_its_steps_and_counts_rewards(tmp_path, view, browser):
    page = view(write_run(tmp_path / "run"), "--prompts", "10")
    shown = blocks(page)["page"]
    assert [group["steps"] for group in shown["groups"]] == [[s] for s in range(5) for _ in (0, 1)]
    browser.open(page)
    assert "10 of 40 prompts, spread over the steps" in browser.text("#made")
    browser.press(*"jjjj")
    said = "step 2 · 4 completions · 1 with reward above 0 · mean reward 0.25"
    assert said in browser.text("#summary")
    heads = browser.texts(".facts")
    assert "✓ rewarded" in heads[0] and "✗ not rewarded" in heads[1]


def test_one_step_of_a_run(tmp_path, view):
    page = blocks(view(write_run(tmp_path / "run"), "--step", "3"))["page"]
    assert {step for group in page["groups"] for step in group["steps"]} == {3}
    assert len(page["groups"]) == 8


def test_a_group_that_moves_nothing_says_so_and_has_no_scale(tmp_path, view, browser):
    browser.open(view(write_run(tmp_path / "run", steps=1, prompts=1, rewards=(1.0, 1.0))))
    assert "All rewards are equal: no advantage, no update" in browser.text("#summary")
    assert "0 at every token" in browser.text("#legend")
    assert not browser.count(".swatch")


def test_methods_and_signs_fill_their_own_scales(tmp_path, view, browser):
    """One wrong answer among right ones: their small updates are not white beside its large one."""
    run = write_run(tmp_path / "run", steps=1, prompts=1, rewards=(1.0,) * 7 + (0.0,))
    browser.open(view(run, "--methods", "sapo,acpo"))

    def deepest():
        paint(browser)
        level = "(t) => Number(/ l(\\d+)/.exec(` ${t.className}`)?.[1] ?? 0)"
        most = f"(card) => Math.max(...[...card.querySelectorAll('.t')].map({level}))"
        return browser.run(f"[...document.querySelectorAll('.card')].map({most})")

    browser.press("b")
    own = deepest()
    assert max(own[:7]) == 16 and own[7] == 16, "each sign fills its ramp"
    assert browser.count("#legend .bar") == 2
    browser.press("c", "c")
    shared = deepest()
    assert browser.count("#legend .bar") == 1
    assert max(shared[:7]) < 16
    browser.press("c")
    assert max(deepest()[:7]) > max(shared[:7]), "a logarithm brings small ones up"


def test_a_diverged_policy_can_be_looked_at(tmp_path, view, browser):
    write_run(tmp_path / "run", steps=2, prompts=1)
    broken = columns(6 * 4, 9)
    for name in ("logp", "old_logp", "log_pmax", "entropy", "delta"):
        broken[name][8:] = np.nan  # from the second completion's third token on
    broken["logp"][12:18], broken["entropy"][12:18] = -np.inf, 0.0  # the third
    rows = [
        {"prompt_id": "x", "sample": i, "prompt": "last", "reward": r, "advantage": r - 0.5}
        for i, r in enumerate((1.0, 0.0, 1.0, 0.0))
    ]
    with TraceWriter(tmp_path / "run", {"source": "train", "method": "acpo", "model": "m"}) as w:
        w.append([{**row, "tokens": 6} for row in rows], broken, step=2)
    trace = Trace.open(tmp_path / "run")
    for method in ("acpo", "8020", "shannon", "gtpo"):
        found = method_columns(trace, method)
        assert np.isfinite(found.credit[: 2 * 24 + 6]).all(), "whole completions keep theirs"
        assert np.isnan(found.credit[2 * 24 + 6 :]).all()
        alone = method_columns(trace.of_step(1), method)
        np.testing.assert_array_equal(found.credit[24:48], alone.credit)
    browser.open(view(tmp_path / "run"))
    browser.press("k")
    assert "3 completions with numbers that are not finite" in browser.text("#summary")
    heads = browser.texts(".facts")
    assert ["not finite" in head for head in heads] == [False, True, True, True]
    paint(browser)
    assert browser.count(".pane .t") == 24


def test_a_chat_template_is_folded_away(tmp_path, view, browser):
    run = write_run(tmp_path / "run", steps=1, prompts=3, prompt=CHAT)
    page = view(run)
    assert [g["prompt"] for g in blocks(page)["page"]["groups"]] == ["0-0", "0-1", "0-2"]
    browser.open(page)
    assert browser.text("#prompt > bdi") == "0-0"
    assert browser.count("#prompt details:not([open])") == 2
    assert "You are kind." in browser.text(".template bdi")
    option = "document.getElementById('prompts').options[1].textContent"
    assert "im_start" not in browser.run(option) and "0-1" in browser.run(option)


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        (["a\nNatalia", "a\nNatasha"], ("a\n", "")),
        (["<|u|>3+4<|e|>\n", "<|u|>3+5<|e|>\n"], ("<|u|>", "<|e|>\n")),
        (["3+4=", "3+5="], ("", "")),
        (["x\n", "x\nx\n"], ("x\n", "")),
        (["same"], ("", "")),
        ([], ("", "")),
    ],
)
def test_what_prompts_share_is_their_template(prompts, expected):
    assert chat_template(set(prompts)) == expected


def test_the_template_of_a_single_prompt():
    before, after = last_user_turn(CHAT.format("What is 3 < 4?"))
    assert before.endswith("user\n") and after.startswith("<|im_end|>")
    assert last_user_turn("3+4=") == ("", "")
    assert last_user_turn("<|" * 50_000) == ("", "")


def test_a_trace_of_two_prompts_shows_what_it_did(tmp_path, view):
    write_trace(tmp_path / "t", prompts=2)
    prompts = [g["prompt"] for g in blocks(view(tmp_path / "t"))["page"]["groups"]]
    whole = Trace.open(tmp_path / "t").rollouts["prompt"].to_pylist()
    assert all(prompt in text for prompt, text in zip(prompts, whole[::4], strict=True))
