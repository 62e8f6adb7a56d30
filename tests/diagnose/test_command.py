"""`acpo diagnose` as it is typed, and a report from which hostile names do not escape."""

import re
import subprocess
import sys

import numpy as np
import pytest

from commandline import REFUSED, acpo
from diagnose.test_dynamics import make_run
from diagnose.traces import make_trace

HOSTILE = "</td><script>alert(1)</script>`|\n# x [a](javascript:b) $\\frac{ &lt;b&gt; ~~no~~"


def run(*arguments: object, status: int = 0) -> str:
    return acpo("diagnose", *arguments, status=status)


def test_each_command_writes_its_files(tmp_path):
    trace = make_trace(tmp_path / "t", parts=1, length=30).path
    for name in ("alignment", "mismatch"):
        assert "tokens" in run(name, trace, "--output", tmp_path / "out")
        for kind in ("csv", "png", "pdf", "md"):
            assert (tmp_path / "out" / f"{name}.{kind}").stat().st_size > 0


@pytest.mark.parametrize("name", ["coupling", "envelope"])
def test_theory_needs_no_trace(tmp_path, no_pdf, name):
    run(name, "--output", tmp_path)
    assert (tmp_path / f"{name}.csv").read_text().count("\n") > 100


def test_one_training_step_of_several(tmp_path, no_pdf):
    path = tmp_path / "t"
    make_trace(path, parts=1, length=10, step=0)
    make_trace(path, parts=1, length=20, step=50)
    assert "120 sampled tokens" in run("alignment", path, "--output", tmp_path)
    assert "80 sampled tokens" in run("alignment", path, "--step", 50, "--output", tmp_path)
    assert "step 50" in (tmp_path / "alignment.md").read_text()
    assert "has steps 0, 50" in run("alignment", path, "--step", 7, status=REFUSED)


def test_all_makes_one_page_that_nothing_escapes_from(tmp_path, no_pdf):
    trace = make_trace(
        tmp_path / "t", parts=1, length=30, header={"model": HOSTILE}, drop=("tail_p2",)
    ).path
    hostile_run = make_run(tmp_path / "run", method=HOSTILE)
    said = run("all", trace, "--runs", hostile_run, "--output", tmp_path / "out")
    assert "4 analyses" in said
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script" not in page and "default-src 'none'" in page
    assert "&lt;script&gt;" in page
    assert "has no tail_p2" in page, "what could not be made is told"
    assert not re.search(r'(src|href)="(?!data:image/png;base64,|#)', page)
    assert page.count("data:image/png;base64,") == 4
    for file in (tmp_path / "out").glob("*.md"):
        text = file.read_text()
        assert "<script" not in text.replace("\\<script", "")
        assert "\n# x" not in text
        assert "&lt;b" not in text.replace("\\&lt;b", ""), "an entity is not what was written"
    assert HOSTILE.splitlines()[0] in (tmp_path / "out" / "dynamics.csv").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gradients", "nowhere"), "`acpo trace` makes one"),
        (("all", "nowhere"), "`acpo trace` makes one"),
        (("dynamics", "nowhere"), "acpo train"),
        (("envelope", "--support", "1"), "at least 2"),
        (("envelope", "--support", "1" + "0" * 30), "below 2^31"),
        (("coupling", "--tau-pos", "0"), "must be positive"),
        (("coupling", "--offset", "nan"), "offset=nan"),
        (("coupling", "--step", "3"), "--step 3: name the trace"),
        (("envelope", "--step", "3"), "--step 3: name the trace"),
        (("envelope", "--rollout", "3"), "--rollout 3: name the trace"),
        (("gradients", "TRACE", "--h-max", "0"), "--h-max 0.0 must be positive and finite"),
        (("gradients", "TRACE", "--h-max", "inf"), "--h-max inf must be positive and finite"),
        (("mismatch", "TRACE", "--tau-pos", "0"), "tau_pos=0.0 must be positive"),
        (("mismatch", "TRACE", "--tau-neg", "nan"), "tau_neg=nan must be positive"),
        (("alignment", "TRACE", "--output", "FILE"), "--output FILE cannot be written"),
        (("alignment", "TRACE", "--output", "FILE/x"), "--output FILE/x cannot be written"),
        (("all", "TRACE", "--output", "FILE"), "--output FILE cannot be written"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    make_trace(tmp_path / "TRACE", parts=1, length=4)
    (tmp_path / "FILE").touch()
    said = run(*arguments, status=REFUSED)
    assert message in said and said.count("\n") == 1


def test_names_do_not_reach_the_terminal_s_commands(tmp_path, no_pdf):
    hostile = make_run(tmp_path / "run", method="acpo\x1b]0;owned\x07\x1b[2J")
    said = run("dynamics", hostile, "--output", tmp_path / "out")
    assert "owned" in said and not {"\x1b", "\x07"} & set(said)


def test_all_of_a_trace_that_no_analysis_can_use_says_why(tmp_path):
    nothing = dict.fromkeys(("logp", "log_pmax", "old_logp"), np.full(120, np.nan))
    trace = make_trace(tmp_path / "t", parts=1, length=30, change=nothing).path
    assert "0 analyses" in run("all", trace, "--output", tmp_path / "out")
    assert "none of its 120 tokens" in (tmp_path / "out" / "report.html").read_text()


def test_the_command_is_light_to_import():
    code = (
        "import acpo.diagnose.command, sys; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'matplotlib', 'jinja2')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
