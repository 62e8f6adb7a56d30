"""The table of all prompts and steps, links to tokens, and what is shown once."""

import numpy as np
import pytest

from acpo.method_columns import method_columns
from acpo.records import Trace, TraceWriter
from acpo.viewer.credit import credit_blocks
from viewer.test_training_traces import columns, write_run
from viewer.traces import HOSTILE, write_trace

CELLS = """[...document.querySelectorAll('#overview-rows tr')].map((row) =>
  [...row.cells].map((cell) => cell.textContent))"""
BLANK = "\u2013"
ODD = ["#prompt=nobody&token=1", "#token=999999&prompt=q0", "#%00<script>"]


def rows(browser):
    return browser.run(CELLS)


def number(cell):
    return float(cell.replace("−", "-"))


def test_every_group_has_a_row_of_its_own_numbers(tmp_path, view, browser):
    write_trace(tmp_path / "t", prompts=3, steps=2)
    trace = Trace.open(tmp_path / "t")
    found = {name: method_columns(trace, name) for name in ("sapo", "acpo")}
    browser.open(view(tmp_path / "t"))
    shown = rows(browser)
    assert len(shown) == 6
    facts = trace.rollouts.to_pylist()
    own = [i for i, f in enumerate(facts) if (f["prompt_id"], f["step"]) == ("q1", 10)]
    where = np.concatenate([np.arange(*trace.starts[i : i + 2]) for i in own])
    update, advantage = found["acpo"].update[where], found["acpo"].advantage[where]
    (row,) = [r for r in shown if r[0].startswith("Problem 1") and r[1] == "10"]
    assert row[2] == "2 / 4" and row[3] == "1" and row[4] == str(len(where))
    assert number(row[5]) == pytest.approx(update[update > 0].sum(), abs=0.006)
    assert number(row[6]) == pytest.approx(-update[update < 0].sum(), abs=0.006)
    assert number(row[7]) == (update * advantage < 0).sum()
    apart = np.abs(update - found["sapo"].update[where])
    assert number(row[8]) == pytest.approx(apart.max(), abs=0.006)
    assert row[9] == "mixed"


def test_what_an_unknown_update_leaves_open_is_blank(tmp_path, view, browser):
    """Training records no tail sums: unrouted updates beside the mode, which may reverse."""
    run = write_run(tmp_path / "run", steps=1, prompts=2)
    trace = Trace.open(run)
    assert np.isfinite(method_columns(trace, "acpo").update).all()
    unknown = np.isnan(method_columns(trace, "acpo_no_routing").update)
    first = int(unknown[: 4 * 6].sum())
    assert 0 < first < 4 * 6
    browser.open(view(run, "--methods", "acpo_no_routing,acpo"))
    said = f"{BLANK} reversed by ACPO w/o routing ({first} updates not known) · 0 reversed by ACPO"
    assert browser.text("#summary").endswith(said)
    assert browser.count("#budgets .budget") == 1
    assert [row[7:9] for row in rows(browser)] == [["0", BLANK]] * 2
    browser.press("m")
    assert [row[5:9] for row in rows(browser)] == [[BLANK] * 4] * 2
    assert browser.count("#budgets .budget") == 0


def test_sorted_filtered_searched_and_opened_by_keyboard(tmp_path, view, browser):
    browser.open(view(write_run(tmp_path / "run"), "--prompts", "40"))
    assert browser.text("#overview-count") == "40 of 40 groups"
    browser.run("document.getElementById('sort-up').focus()")
    browser.press("Enter")
    up = [number(row[5]) for row in rows(browser)]
    assert up == sorted(up, reverse=True) and len(set(up)) > 5
    browser.press("Enter")
    assert [number(row[5]) for row in rows(browser)] == sorted(up)
    browser.run("document.getElementById('overview-filter').focus()")
    browser.press(*"3-")
    assert {row[0][:6] for row in rows(browser)} == {"ask 3-"} and len(rows(browser)) == 8
    browser.run("document.querySelector('#overview-rows tr').focus()")
    browser.press("ArrowDown", "Enter")
    browser.frames()
    assert "step 3" in browser.text("#summary")
    assert rows(browser)[1][0] == browser.text("#prompt > bdi")
    browser.press("o")
    current = "document.activeElement.getAttribute('aria-current')"
    assert browser.run(current) == "true"


def test_a_token_can_be_linked(tmp_path, view, browser):
    write_trace(tmp_path / "t", prompts=3, steps=2)
    page = view(tmp_path / "t")
    browser.open(page)
    browser.press("j", "4")
    browser.run("document.querySelectorAll('.pane')[2].focus()")
    browser.press(*["ArrowRight"] * 5)
    place = browser.run("location.hash")
    assert "prompt=q1" in place and "sample=2" in place and "colour=delta" in place
    token = browser.text("#inspector .muted")
    browser.open(page)
    browser.open(page.resolve().as_uri() + "?again" + place)
    browser.frames()
    assert browser.text("#inspector .muted") == token
    assert browser.run("document.getElementById('quantity').value") == "delta"
    browser.events.clear()


@pytest.mark.parametrize("hash", ODD)
def test_odd_addresses_open_the_page(tmp_path, view, browser, hash):
    write_trace(tmp_path / "t", prompts=2)
    page = view(tmp_path / "t")
    browser.open(page)
    browser.open(page.resolve().as_uri() + "?x" + hash)
    assert browser.count(".card") == 4
    assert browser.problems() == []
    browser.events.clear()


def test_what_the_policy_repeats_is_shown_once(tmp_path, view, browser):
    one, other = columns(12, 3), columns(12, 4)
    joined = {name: [*one[name], *one[name], *other[name]] for name in one}
    row = {"prompt_id": "q", "tokens": 12, "prompt": "x", "advantage": 0.5, "reward": 1.0}
    last = {**row, "sample": 2, "reward": 0.0, "advantage": -1.0}
    with TraceWriter(tmp_path / "t", {"method": "acpo"}) as writer:
        writer.append([{**row, "sample": 0}, {**row, "sample": 1}, last], joined)
    browser.open(view(tmp_path / "t"))
    heads = browser.texts(".facts")
    assert len(heads) == 2 and heads[0].startswith("#0 #1") and "2 times" in heads[0]
    assert "3 completions" in browser.text("#summary")
    bar = browser.run("document.querySelector('.budget').title")
    assert "% of the update on a tenth of the tokens" in bar


def test_the_difference_of_two_methods_can_be_coloured(tmp_path, view, browser):
    write_trace(tmp_path / "t", prompts=1)
    browser.open(view(tmp_path / "t", "--methods", "sapo,acpo"))
    browser.press("8")
    assert browser.run("document.getElementById('quantity').value") == "difference"
    trace = Trace.open(tmp_path / "t")
    sapo, acpo = (method_columns(trace, name).update for name in ("sapo", "acpo"))
    browser.press("v")
    browser.frames()
    first = browser.run("document.querySelector('.pane .t').dataset.v")
    assert number(first.replace("+", "")) == pytest.approx(acpo[0] - sapo[0], abs=0.006)


def test_hostile_prompts_stay_text_in_the_table(tmp_path, view, browser):
    body = b"".join(HOSTILE[:12]).decode("utf-8", "replace")
    run = write_run(
        tmp_path / "run", steps=2, prompts=2, prompt=body.replace("{", "").replace("}", "") + "{}"
    )
    browser.open(view(run))
    browser.run("document.querySelectorAll('#overview-rows tr').forEach((r) => r.click())")
    assert browser.run("typeof window.pwned") == "undefined"
    assert browser.count(".overview :is(img, iframe, a, script)") == 0


def test_a_thousand_prompts_open_quickly(tmp_path, view, browser):
    run = write_run(tmp_path / "run", steps=10, prompts=100, rewards=(1.0, 0.0) * 4)
    page = view(run, "--prompts", "1000")
    tasks = browser.main_thread_tasks(lambda: browser.open(page))
    assert len(rows(browser)) == 1000
    assert sum(tasks) < 10_000.0, "CPU ms to open it: about 1,000 on a machine of one's own"


def test_what_completions_share_is_folded_and_where_they_part_is_marked(tmp_path, view, browser):
    """Two that part at token 20, and one of its own; the update of each split four ways."""
    first, second = [1] * 20 + [2, 3, 4] * 4, [1] * 20 + [5, 6, 7] * 4
    ids = [*first, *second, *[8] * 12]
    columns = {"token_id": ids, "piece": [b" w%d" % token for token in ids]}
    columns |= {"logp": [-0.5] * 76, "log_pmax": [-0.5] * 76, "entropy": [0.5] * 76}
    columns["is_mode"] = [True] * 76
    rows = [
        {"prompt_id": "q", "sample": n, "tokens": length, "reward": r, "advantage": 2 * r - 1}
        for n, (length, r) in enumerate([(32, 1.0), (32, 0.0), (12, 0.0)])
    ]
    with TraceWriter(tmp_path / "t", {"method": "sapo"}) as writer:
        writer.append(rows, columns)
    browser.open(view(tmp_path / "t", "--methods", "sapo"))
    shown = "[...document.querySelectorAll('.pane')].map((p) => p.querySelectorAll('.t').length)"
    assert browser.run(shown) == [32, 12, 12]
    assert browser.text(".fold") == "20 tokens as above"
    forks = "[...document.querySelectorAll('.fork')].map((t) => [t.index, t.textContent])"
    assert browser.run(forks) == [[20, " w2"], [20, " w5"]]
    bars = "[...document.querySelectorAll('.budget')].map((bar) => bar.title)"
    group, *own = browser.run(bars)
    assert own[0].startswith("update: 100% up on the mode, 0% up off it")
    assert own[1].startswith("update: 0% up on the mode, 0% up off it, 100% down on the mode")
    assert group.startswith("update: 42% up on the mode, 0% up off it, 58% down on the mode")
    browser.run("document.querySelector('.fold').click()")
    assert browser.run(shown) == [32, 32, 12] and not browser.run("document.querySelector('.fold')")
    browser.open(tmp_path / "page.html")
    browser.run("document.querySelectorAll('.pane')[1].focus()")
    browser.press("End", *["ArrowLeft"] * 12)
    assert browser.run("document.querySelector('.active').index") == 19, "arrows open a fold"


@pytest.mark.parametrize("reward", [np.inf, -np.inf, np.nan])
def test_a_reward_that_is_no_number_judges_nothing(tmp_path, view, reward):
    rows = [
        {"prompt_id": "q", "sample": i, "prompt": "p", "reward": r, "advantage": 0.0, "tokens": 6}
        for i, r in enumerate((1.0, reward, 0.0))
    ]
    with TraceWriter(tmp_path / "t", {"model": "m", "method": "acpo"}) as writer:
        writer.append(rows, columns(18, 0))
    view(tmp_path / "t")
    blocks = credit_blocks(Trace.open(tmp_path / "t"), name="t")
    (row,) = blocks["page"]["groups"][0]["overview"]
    assert (row["judged"], row["right"], row["spread"]) == (2, 1, 1.0)
