"""Tokens that stand out: found in the columns, and opened in the page where the report links."""

import re
from html import unescape

import numpy as np
import pytest

from acpo.diagnose.command import MOST_READ
from acpo.diagnose.outliers import EACH, QUANTITIES, outliers
from acpo.records import Trace, TraceWriter
from commandline import REFUSED
from diagnose.test_command import run
from viewer.conftest import view  # noqa: F401 (a fixture)
from viewer.traces import HOSTILE, write_trace


@pytest.fixture
def no_analyses(monkeypatch):
    """A report of outliers alone: figures are others' to look at."""
    monkeypatch.setattr("acpo.diagnose.command._analyses", lambda *asked: [])


def test_outliers_are_the_largest_of_the_raw_columns(tmp_path):
    write_trace(tmp_path / "t", prompts=3, steps=2)
    trace = Trace.open(tmp_path / "t")
    columns = trace.tokens("entropy", "logp", "log_pmax", "old_logp")
    p, most = np.exp(columns["logp"].astype(float)), np.exp(columns["log_pmax"].astype(float))
    expected = {
        "entropy": columns["entropy"],
        "mismatch": most - p,
        "ratio": np.abs(columns["logp"].astype(float) - columns["old_logp"]),
    }
    found = outliers(trace)
    assert [one.colour for one in found] == [name for name in QUANTITIES for _ in range(EACH)]
    rows = trace.rollouts.to_pylist()
    for name, values in expected.items():
        own = [one for one in found if one.colour == name]
        for one, at in zip(own, np.argsort(-values, kind="stable"), strict=False):
            number = int(np.searchsorted(trace.starts, at, side="right")) - 1
            row = rows[number]
            assert (one.prompt, one.step, one.sample) == tuple(
                row[key] for key in ("prompt_id", "step", "sample")
            )
            assert one.token == at - trace.starts[number]
            assert np.isclose(one.value, values[at])
            assert one.text == trace.table("piece")["piece"][int(at)].as_py().decode()


def test_nothing_known_stands_out(tmp_path):
    row = {"prompt_id": "q", "sample": 0, "tokens": 3}
    values = {"token_id": [1, 2, 3], "entropy": [np.nan, 0.0, np.inf], "logp": [-1.0] * 3}
    with TraceWriter(tmp_path / "t", {}) as writer:
        writer.append([row], values | {"old_logp": [-1.0] * 3})
    assert outliers(Trace.open(tmp_path / "t")) == []


def test_the_report_links_to_the_token_in_the_page(no_analyses, tmp_path, view, browser):  # noqa: F811
    write_trace(tmp_path / "t", prompts=3, steps=2)
    page = view(tmp_path / "t")
    folder = tmp_path / "out"
    run("all", tmp_path / "t", "--output", folder, "--page", page)
    links = re.findall(r'href="([^"#]+#[^"]*)"', (folder / "report.html").read_text())
    assert len(links) == EACH * len(QUANTITIES)
    highest = outliers(Trace.open(tmp_path / "t"))[1]
    browser.open(folder.resolve().as_uri() + "/" + unescape(links[1]))
    assert browser.text("#inspector .muted").startswith(f"token {highest.token + 1} of ")
    assert browser.run("document.getElementById('quantity').value") == "entropy"
    assert f"step {highest.step} " in browser.text("#summary")
    label = "document.querySelector('.active').closest('.card').getAttribute('aria-label')"
    assert browser.run(label) == f"completion {highest.sample}"
    assert browser.text("#prompt > bdi").startswith(f"Problem {highest.prompt[1:]}:")


def test_only_what_the_page_has_is_linked(no_analyses, tmp_path, view):  # noqa: F811
    write_trace(tmp_path / "t", prompts=3, steps=2)
    found = outliers(Trace.open(tmp_path / "t"))
    for options, has in (
        (("--prompts", 1), lambda one: one.prompt == "q0"),
        (("--step", 10), lambda one: one.step == 10),
    ):
        page = view(tmp_path / "t", *options)
        run("all", tmp_path / "t", "--output", tmp_path / "out", "--page", page)
        report = (tmp_path / "out" / "report.html").read_text()
        links = [unescape(link) for link in re.findall(r'href="[^"#]+#([^"]*)"', report)]
        expected = [one.address(page, tmp_path).partition("#")[2] for one in found if has(one)]
        assert links == expected and 0 < len(links) < len(found)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<p>another's</p>",
        '<script type="application/json" id="page">{"items":[]}</script>',
        '<script type="application/json" id="page">{"groups":[{"id":[],"steps":[1]}]}</script>',
        '<script type="application/json" id="page">[[]]</script>',
        f'<script type="application/json" id="page">{"[" * 100_000}</script>',
        f'{" " * MOST_READ}<script type="application/json" id="page">{{"groups":[]}}</script>',
    ],
    ids=["empty", "other", "review", "id", "list", "deep", "far"],
)
def test_what_is_no_page_of_a_trace_is_refused(no_analyses, tmp_path, text):
    write_trace(tmp_path / "t", prompts=1)
    (tmp_path / "odd.html").write_text(text)
    odd = ("--output", tmp_path / "out", "--page", tmp_path / "odd.html")
    said = run("all", tmp_path / "t", *odd, status=REFUSED)
    assert "odd.html is no page of a trace" in said and "acpo view" in said


def test_hostile_tokens_and_names_stay_text_in_the_report(no_analyses, tmp_path, view):  # noqa: F811
    write_trace(tmp_path / "t", pieces=HOSTILE, in_order=True, prompts=1)
    odd = tmp_path / 'a"><script>&javascript:x.html'
    view(tmp_path / "t").rename(odd)
    run("all", tmp_path / "t", "--output", tmp_path / "out", "--page", odd)
    text = (tmp_path / "out" / "report.html").read_text()
    assert "<script" not in text and "onerror=" not in text.replace("onerror=&#34;", "")
    for link in re.findall(r'href="([^"]*)"', text):
        assert re.fullmatch(
            r"#\w+|\.\./a%22%3E%3Cscript%3E%26javascript%3Ax\.html#[\w=&;.%+-]+", link
        )
    missing = run("all", tmp_path / "t", "--page", tmp_path / "no.html", status=REFUSED)
    assert "acpo view" in missing


def test_a_part_without_tokens_loses_no_report(no_analyses, tmp_path):
    write_trace(tmp_path / "t", prompts=1)
    trace = Trace.open(tmp_path / "t")
    found = outliers(trace)
    header = {key: trace.header[key] for key in trace.header.keys() - {"format", "version"}}
    with TraceWriter(tmp_path / "t", header) as writer:
        empty = {name: [] for name in trace.columns}
        writer.append([{"prompt_id": "q", "sample": 9, "tokens": 0}], empty, step=1)
    run("all", tmp_path / "t", "--output", tmp_path / "out")
    assert len(found) == EACH * len(QUANTITIES)
    assert (tmp_path / "out" / "report.html").read_text().count(found[0].what) == EACH
