"""The page of a run: while it trains, served to one person; afterwards, a file."""

import contextlib
import http.client
import json
import threading
from types import SimpleNamespace

import pytest
from transformers import TrainerControl, TrainerState

from acpo.engines.trl.watch import Watch
from acpo.viewer.live import LiveServer, run_answers
from acpo.viewer.run import MOST_POINTS, run_facts, thinned
from viewer.test_credit import refusal
from viewer.test_screens import fits, screen  # noqa: F401 (a fixture)
from viewer.traces import HOSTILE, write_trace

MARKUP = "<img src=x onerror=window.pwned=1>\u202e</script><script>window.pwned=2</script>"
COUNT = "document.querySelectorAll('{}').length"


def row(step, **more):
    logged = {"reward": step / 10, "entropy": 0.3, "delta": 0.1, "update/positive_share": 0.4}
    logged |= {"completions/mean_length": 20.0 + step, "step_time": 1.5}
    return {"step": step, **logged, **more}


def log(run, *rows):
    with (run / "log.jsonl").open("a") as file:
        file.write("".join(json.dumps(one) + "\n" for one in rows))


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    reports = {"wandb": "https://wandb.ai/x/y", "tensorboard": "tensorboard --logdir run"}
    log(
        folder, {"reports": reports | {"evil": "javascript:window.pwned=3"}}, *map(row, range(1, 6))
    )
    write_trace(folder / "trace", prompts=2, group=3, length=30)
    return folder


@pytest.fixture
def live_browser(shared_browser):
    """Pages that ask and ask end with the test."""
    yield shared_browser
    shared_browser.open("about:blank")


@contextlib.contextmanager
def serving(run):
    with LiveServer(run_answers(run)) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield served
        served.shutdown()
        thread.join()


@pytest.fixture
def server(run):
    with serving(run) as served:
        yield served


def ask(server, path, method="GET", **headers):
    """Status, headers and body."""
    host = headers.pop("Host", f"127.0.0.1:{server.server_port}")
    link = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    link.putrequest(method, path, skip_host=True)
    for name, value in {"Host": host, **headers}.items():
        link.putheader(name, value)
    link.endheaders()
    answer = link.getresponse()
    body = answer.read()
    link.close()
    return answer.status, answer.headers, body


def test_curves_warnings_rollouts_and_dashboards_as_they_come(run, server, live_browser):
    browser = live_browser
    browser.open(server.address)
    browser.wait("document.getElementById('run-state').textContent === 'live'")
    assert browser.count("#curves svg") == 6
    assert "0.500 at 5" in browser.text(".curve")
    assert browser.text("#reports").startswith("wandb")
    links = "[...document.querySelectorAll('#reports a')].map((a) => a.getAttribute('href'))"
    assert browser.run(links) == ["https://wandb.ai/x/y"], "a script is no address"
    assert browser.count(".pane") == 3

    log(run, row(6, warnings=["reward fell " + MARKUP]))
    browser.wait("document.querySelector('#warnings li')")
    assert "reward fell <img" in browser.text("#warnings")
    assert browser.text("#run-step") == "step 6"

    same = {"header": {"vocab_size": 20}, "prompts": 1}
    write_trace(run / "trace", pieces=HOSTILE, in_order=True, group=2, length=40, start=5, **same)
    browser.wait(COUNT.format(".pane") + " === 2")
    browser.run("document.getElementById('follow').click()")
    write_trace(run / "trace", group=4, length=30, start=6, **same)
    log(run, row(7))
    browser.wait("document.getElementById('run-step').textContent === 'step 7'")
    assert browser.count(".pane") == 2, "what is being read stays"
    browser.run("document.getElementById('follow').click()")
    browser.wait(COUNT.format(".pane") + " === 4")

    assert browser.run("typeof window.pwned") == "undefined"
    assert browser.count("img, iframe, object, embed") == 0
    assert browser.problems() == []
    assert all(url.startswith(server.address) for url in browser.requests())


def test_when_the_server_ends_the_page_keeps_what_came(run, live_browser):
    with serving(run) as served:
        live_browser.open(served.address)
    ended = "document.getElementById('run-state').textContent.startsWith('the server ended')"
    live_browser.wait(ended)
    assert live_browser.count("#curves svg") == 6


def test_what_is_saved_is_the_report_that_view_writes(run, server, tmp_path, view, browser):
    status, headers, body = ask(server, f"/{server.token}/report.html")
    assert status == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    page = view(run)
    assert page.read_bytes() == body
    assert b"connect-src" not in body, "a file asks nobody"
    browser.open(page)
    assert browser.count("#curves svg") == 6
    assert browser.count(".pane") == 3
    assert browser.run("document.getElementById('follow').closest('label').hidden")


def test_it_fits_a_phone(run, view, screen):  # noqa: F811
    log(run, row(6, warnings=["word " * 30 + "x" * 200]))
    browser = screen(390)
    browser.open(view(run))
    fits(browser)


def test_a_run_without_rollouts_and_one_that_has_not_begun(run, tmp_path, view, browser):
    (run / "trace").rename(tmp_path / "elsewhere")
    log(run, row(6, warnings=[MARKUP]))
    browser.open(view(run))
    browser.press(*"jnvb[")
    assert "record_rollouts" in browser.run("document.body.innerText")
    assert not browser.run("document.querySelector('.work').checkVisibility()")
    empty = tmp_path / "empty"
    empty.mkdir()
    with LiveServer(run_answers(empty)) as served:
        kind, text = served.answers[""]("")
    assert kind == "text/html" and "connect-src 'self'" in text.replace("&#39;", "'")
    assert "is not a trace" in refusal(empty)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["RUN/nowhere"], "give the output_dir"),
        (["RUN/trace"], "give the output_dir"),
        (["RUN", "-o", "x.html"], "without --output"),
        (["RUN", "--step", "1"], "without --output, --step"),
        (["RUN", "--port", "TAKEN"], "Address already in use"),
    ],
)
def test_what_cannot_be_served_is_told(run, server, more, said):
    taken = str(server.server_port)
    arguments = [one.replace("RUN", str(run)).replace("TAKEN", taken) for one in more]
    assert said in refusal("--live", *arguments)


@pytest.mark.parametrize("name", ["evil.example", "evil.example:{port}", "", "127.0.0.1", "[::1]"])
def test_other_names_of_this_machine_are_refused(server, name):
    """A name of the attacker's that was made to point here sends that name."""
    path = f"/{server.token}/run.json"
    assert ask(server, path, Host=name.format(port=server.server_port))[0] == 403
    assert ask(server, path, Host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_are_refused(server, site):
    assert ask(server, f"/{server.token}/", **{"Sec-Fetch-Site": site})[0] == 403


def test_no_other_site_reads_an_answer(server, tmp_path, live_browser):
    _, headers, _ = ask(server, f"/{server.token}/run.json", Origin="https://evil.example")
    assert not [name for name in headers if name.lower().startswith("access-control")]
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    page = tmp_path / "evil.html"
    page.write_text("<p>evil</p>")
    live_browser.open(page)
    for mode in ("cors", "no-cors"):
        read = f"fetch('{server.address}run.json', {{mode: '{mode}'}})"
        assert live_browser.run(f"{read}.then((a) => a.text(), () => 'refused')") == "refused"
    frame = f"document.body.appendChild(Object.assign(document.createElement('iframe'), \
        {{src: '{server.address}'}}))"
    live_browser.run(f"new Promise((done) => {{ {frame}.onload = () => done() }})")
    assert live_browser.run(
        "(() => { try { return frames[0].document.body.innerText } \
        catch { return 'refused' } })()"
    ) in ("refused", "")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_is_written(run, server, method):
    before = sorted((file, file.stat().st_mtime_ns) for file in run.rglob("*"))
    assert ask(server, f"/{server.token}/run.json", method, **{"Content-Length": "0"})[0] == 501
    assert before == sorted((file, file.stat().st_mtime_ns) for file in run.rglob("*"))


PATHS = (
    *("/", "*", "//", "/run.json", "/TOKEN", "/TOKEN/log.jsonl", "/TOKEN/trace/header.jsonl"),
    *("/TOKEN/../log.jsonl", "/TOKEN/..%2flog.jsonl", "/TOKEN//etc/passwd", "/TOKEN/run.json/"),
    *("/TOKEN/%00", "/token/run.json", "/TOKENx/run.json", "http://evil.example/TOKEN/run.json"),
    "/%e9/run.json",
)


@pytest.mark.parametrize("path", PATHS)
def test_there_is_no_way_to_a_file(server, path):
    status, _, body = ask(server, path.replace("TOKEN", server.token))
    assert status == 404 and b"acpo-trace" not in body and b"root:" not in body


def test_damaged_logs_show_what_is_left(tmp_path):
    lines = [b"{", b"[1]", b"null", b'{"step": -1, "reward": 1}', b'{"step": 3, "reward": "x"}']
    lines += [b'{"step": 4, "reward": 1e999, "warnings": 7}', b'{"step": 1e5, "reward": true}']
    lines += [b'{"step": 5, "reward": 0.5, "reports": []}', b"[" * 100_000, b'{"step": 6, "rew']
    (tmp_path / "log.jsonl").write_bytes(b"\n".join(lines))
    facts = run_facts(tmp_path)
    assert facts["curves"] == [{"label": "reward", "points": [(0, 1.0), (5, 0.5)]}]
    assert facts["step"] == 5 and facts["warnings"] == [] and facts["reports"] == {}


def test_spikes_outlive_thinning():
    points = [(step, 0.0) for step in range(100_000)]
    points[54_321], points[77] = (54_321, 9.0), (77, -9.0)
    kept = thinned(points)
    assert len(kept) <= MOST_POINTS and (54_321, 9.0) in kept and (77, -9.0) in kept
    assert kept == sorted(kept) and thinned(points[:500]) == points[:500]
    points[-2:] = [(99_998, 9.0), (99_999, 5.0)]
    assert thinned(points)[-2:] == points[-2:], "the newest stays"


def test_training_logs_as_it_goes_and_again_from_a_checkpoint(tmp_path):
    args = SimpleNamespace(output_dir=str(tmp_path), report_to=["tensorboard", "trackio"])
    state = TrainerState(max_steps=100, is_world_process_zero=True)

    def train(steps):
        watch = Watch()
        watch.on_train_begin(args, state, TrainerControl())
        for _ in range(steps):
            state.global_step += 4
            logs = {"update/positive_share": 0.01, "reward": float("nan"), "entropy": 0.3}
            state.log_history.append({**logs, "step": state.global_step})
            watch.on_log(args, state, TrainerControl(), logs=logs)

    train(6)
    facts = run_facts(tmp_path)
    assert facts["step"] == 24 and len(facts["warnings"]) == 1
    assert [curve["label"] for curve in facts["curves"]] == ["entropy, nats", "positive share"]
    assert facts["reports"]["tensorboard"] == f"tensorboard --logdir {tmp_path}"
    state.global_step, state.log_history = 16, state.log_history[:4]
    train(1)
    assert run_facts(tmp_path)["step"] == 20, "what a resumed run forgot is forgotten"


def test_options_that_would_do_nothing_are_refused(run, tmp_path):
    assert "--port 8000 is of --live" in refusal(run, "--port", 8000)
    bare = tmp_path / "bare"
    bare.mkdir()
    log(bare, row(1))
    for option in (("--step", 3), ("--annotations", "a.jsonl")):
        assert "holds no recorded rollouts" in refusal(bare, *option)
