"""The credit page in a real browser."""

import json

import numpy as np
import pytest

from acpo.method_columns import method_columns
from acpo.records import Trace, TraceWriter
from viewer.browser import Browser, PageError
from viewer.traces import HOSTILE, WORDS, write_trace

TOKENS = "[...document.querySelectorAll('.card:first-child .pane:first-of-type .t')]"
READ = """(() => {
  const cells = {};
  for (const row of document.querySelectorAll('#inspector tr')) {
    const name = row.querySelector('th')?.textContent;
    if (name) cells[name] = [...row.querySelectorAll('td')].map((cell) => cell.textContent);
  }
  cells.place = document.querySelector('#inspector .muted').textContent;
  return cells;
})()"""


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("+", ""))


@pytest.fixture
def page(tmp_path, view, browser: Browser):
    """Open the page of a trace made with these settings; gives the trace."""

    def show(*options: str, **settings) -> Trace:
        write_trace(tmp_path / "t", **settings)
        browser.open(view(tmp_path / "t", *options))
        return Trace.open(tmp_path / "t")

    return show


def test_hover_and_keyboard_give_all_numbers(page, browser):
    trace = page(prompts=1)
    names = ("logp", "old_logp", "entropy", "delta", "token_id")
    data = trace.tokens(*names)
    columns = {name: method_columns(trace, name) for name in ("sapo", "acpo")}
    browser.run(f"{TOKENS}[7].scrollIntoView()")
    browser.run("document.querySelector('.pane').id = 'first'")
    browser.hover("#pane0-7, #first .t:nth-of-type(8)")
    browser.frames()
    hovered = browser.run(READ)
    assert hovered["place"] == f"token 8 of 60 · id {data['token_id'][7]}"
    for column in ("credit", "advantage", "update"):
        label = {"credit": "credit c", "advantage": "advantage A"}.get(column, column)
        shown = [number(text) for text in hovered[label]]
        real = [getattr(columns[name], column)[7] for name in ("sapo", "acpo")]
        assert shown == pytest.approx(real, abs=6e-4, rel=0.06)
    assert number(hovered["log w"][0]) == pytest.approx(
        data["logp"][7] - data["old_logp"][7], abs=6e-5
    )
    assert number(hovered["entropy"][0]) == pytest.approx(data["entropy"][7], abs=6e-5)
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    browser.run("document.querySelector('.pane').focus()")
    browser.press("Home", *["ArrowRight"] * 7)
    assert browser.run(READ) == hovered
    alternatives = browser.run(
        "[...document.querySelectorAll('.alternatives tr')].map((r) => r.innerText.split('\\t'))"
    )
    top = trace.table("top_ids", "top_logps")
    shares = [number(row[-1]) for row in alternatives]
    assert shares[:5] == pytest.approx(np.exp(top["top_logps"][7].as_py()), abs=6e-5)
    sampled = [row[0] for row in alternatives].index("●")
    assert shares[sampled] == pytest.approx(np.exp(data["logp"][7]), abs=6e-5)
    assert (sampled < 5) == (data["token_id"][7] in top["top_ids"][7].as_py())


def test_hostile_tokens_do_nothing_and_all_show(page, browser):
    page(pieces=HOSTILE, in_order=True, prompts=1, group=2, length=len(HOSTILE))
    for script in ("document.querySelectorAll('.t').forEach((t) => t.click())", "0"):
        browser.run(script)
    for name in ("click", "mouseover", "pointerover", "focus", "load", "error"):
        fire = f"(e) => e.dispatchEvent(new Event('{name}'))"
        browser.run(f"document.querySelectorAll('.pane, .pane *').forEach({fire})")
    assert browser.run("typeof window.pwned") == "undefined"
    assert browser.count("img,iframe,a,object,embed,link") == 0
    assert browser.count(".card script, .card [onerror]") == 0
    texts = browser.run(f"{TOKENS}.map((t) => t.textContent)")
    for piece, text in zip(HOSTILE[:12], texts, strict=False):
        assert text == piece.decode()
    shown = dict(zip(HOSTILE, texts, strict=True))
    assert shown[b"\xf0\x9f"] == "😀" and shown[b"\x98\x80"] == "9880"
    assert shown[b"\xe2\x9d\xa4\xef\xb8\x8f"] == "❤\ufe0f"
    assert (
        shown[b"\xff"] == "FF" and shown[b"\xc3("] == "C3(" and shown[b"\xed\xa0\x80"] == "EDA080"
    )
    assert shown[b"\x00"] == "␀" and shown[b"\x7f"] == "␡" and shown[b"\x1b[31m"] == "␛[31m"
    assert shown["\u202egnp.exe\u202c".encode()] == "RLOgnp.exePDF"
    assert shown["a\u200bb\u200d\ufeff".encode()] == "aZWSPbZWJBOM"
    assert shown["\u2028\u2029".encode()] == "LSPS"
    assert shown["\u0301acute".encode()] == "\u25cc\u0301acute"
    assert shown[("Z" + "\u0321" * 40).encode()] == "Z" + "\u0321" * 3 + "+37"
    assert shown[b"A" * 100_000] == "A" * 240 + "… +99,760"
    assert shown[b""] == "∅" and shown[b" "] == " "
    assert shown[b"\t"] == "⇥\t" and shown[b"\n\n"] == "↵\n↵" and shown[b"\r\n"] == "␍↵"
    widths = browser.run(f"{TOKENS}.map((t) => t.getBoundingClientRect().width)")
    assert min(widths) > 2


def test_the_policy_is_in_force(tmp_path, view, shared_browser):
    write_trace(tmp_path / "t")
    browser = shared_browser
    browser.open(view(tmp_path / "t"))
    with pytest.raises(PageError, match="TrustedHTML"):
        browser.run("document.body.innerHTML = '<b>x</b>'")
    assert (
        browser.run("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'blocked')") == "blocked"
    )
    with pytest.raises(PageError, match="TrustedScript"):
        browser.run("document.body.setAttribute('onclick', 'window.ran = 1')")
    browser.run(
        "(() => { const s = document.createElement('style'); s.append('body { color: red }');"
        "document.body.append(s); })()"
    )
    browser.run(
        "new Promise((done) => { const i = new Image(); i.onerror = i.onload = done;"
        "i.src = 'http://127.0.0.1:9/x.png'; })"
    )
    assert browser.run("getComputedStyle(document.body).color") != "rgb(255, 0, 0)"
    assert len([p for p in browser.problems() if "Content Security Policy" in p]) >= 3
    assert browser.requests(blocked=False) == []


def test_right_to_left_text_reorders_nothing(page, browser):
    pieces = (
        b"1",
        "שלום".encode(),
        b" 23",
        "مرحبا".encode(),
        b"-4",
        "\u202e56".encode(),
        b"7",
    )
    page(pieces=pieces, in_order=True, prompts=1, group=2, length=7)
    lefts = browser.run(f"{TOKENS}.map((t) => t.getBoundingClientRect().left)")
    assert lefts == sorted(lefts) and len(set(lefts)) == 7
    browser.run("document.querySelector('.pane').focus()")
    browser.press("Home", "ArrowRight")
    order = browser.run(
        """(() => {
          const cell = document.querySelector('.given td');
          const at = (i) => { const r = document.createRange(); r.setStart(cell.firstChild, i);
            r.setEnd(cell.firstChild, i + 1); return r.getBoundingClientRect().left; };
          return [...cell.textContent].map((_, i) => at(i));
        })()"""
    )
    assert order == sorted(order)


def test_filters_and_counts(page, browser):
    trace = page("--methods", "acpo_no_routing,acpo", prompts=1, drift=0.0)
    data = trace.tokens("is_mode", "advantage")
    unrouted = method_columns(trace, "acpo_no_routing")
    reversed_ = unrouted.update * unrouted.advantage < 0
    assert reversed_.any()
    summary = browser.text("#summary")
    assert f"{reversed_.sum()} reversed by ACPO w/o routing · 0 reversed by ACPO" in summary
    assert f"{100 * (~data['is_mode']).mean():.1f}% not the mode" in summary
    browser.press("f")
    browser.frames()
    assert browser.text("#hits") == f"{(~data['is_mode']).sum()} hits"
    assert browser.count(".pane .t:not(.dim)") == (~data["is_mode"]).sum()
    browser.press("m", "f")
    browser.frames()
    assert browser.text("#hits").split()[0] == str(reversed_.sum())
    browser.press("n", "n")
    index = np.flatnonzero(reversed_)[1]
    owner = int(np.searchsorted(trace.starts, index, side="right")) - 1
    assert browser.run(READ)["place"].startswith(f"token {index - trace.starts[owner] + 1} of")
    browser.press("f", "s")
    assert all("✓" in text for text in browser.texts(".facts"))
    browser.press("s")
    assert ["✗" in text for text in browser.texts(".facts")] == [True, True]


def test_two_methods_side_by_side(page, browser):
    page(prompts=1)
    browser.press("b")
    browser.frames()
    assert browser.texts(".method") == ["SAPO", "ACPO"] * 4
    browser.run(
        """{
          const [left, right] = document.querySelectorAll('.card .pane');
          for (const pane of [left, right]) pane.style.maxHeight = '80px';
          left.scrollTop = 30;
        }"""
    )
    browser.wait("document.querySelectorAll('.card .pane')[1].scrollTop === 30")
    classes = browser.run(
        "[...document.querySelectorAll('.card:first-child .pane')]"
        ".map((p) => p.querySelector('.t:nth-of-type(3)').className)"
    )
    assert classes[0] != classes[1]
    browser.press("4")
    browser.frames()
    assert browser.count(".pane") == 4


def test_differences_are_to_the_first_method_named(page, browser):
    trace = page("--methods", "sapo,8020", prompts=1)
    browser.run(
        """{
          const chosen = document.getElementById('quantity');
          chosen.value = 'difference';
          chosen.dispatchEvent(new Event('change'));
          document.getElementById('values').click();
        }"""
    )
    browser.frames()
    shown = browser.run(f"{TOKENS}.slice(0, 6).map((token) => token.dataset.v)")
    first, second = (method_columns(trace, name).update for name in ("sapo", "8020"))
    assert [number(text) for text in shown] == pytest.approx((second - first)[:6], abs=0.006)
    assert (second != first)[:6].any()


def test_steps(page, browser):
    trace = page(prompts=1, steps=3)
    assert browser.text("#step-value") == "20"
    browser.press("[")
    assert browser.text("#step-value") == "10"
    browser.run("document.getElementById('step').focus()")
    browser.press("ArrowLeft")
    assert browser.text("#step-value") == "0"
    browser.frames()
    first = trace.rollouts["completion"][0].as_py()
    text = browser.text(".pane")
    assert text.replace("↵", "").replace("\n", "") == first.replace("\n", "")


def test_one_step_has_no_slider_and_prompts_turn(page, browser):
    page(prompts=3)
    assert browser.run("document.getElementById('steps').hidden") is True
    seen = [browser.text("#prompt")]
    for key in "jjjk":
        browser.press(key)
        seen.append(browser.text("#prompt"))
    assert [text[8] for text in seen] == ["0", "1", "2", "0", "2"]


def test_search_crosses_tokens(page, browser):
    trace = page(prompts=1, pieces=(b"ab", b"c.", b"*x", b"Q"), length=400)
    browser.press(*"/bC.*")
    browser.frames()
    texts = trace.rollouts["completion"].to_pylist()
    expected = sum(text.lower().count("bc.*") for text in texts)
    assert expected > 3
    assert browser.text("#hits") == f"{expected} hits"
    assert browser.count(".found") == 3 * expected
    browser.press("Enter", "Enter")
    browser.press("Enter", modifiers=8)
    assert browser.text("#hits") == f"1 / {expected} hits"
    assert browser.text(".active") == "ab"


def test_search_finds_text_after_a_split_character(page, browser):
    page(prompts=1, pieces=(b"caf", b"\xc3", b"\xa9", b" noir"), length=8, in_order=True)
    browser.press(*"/\u00e9 noir")
    browser.frames()
    assert browser.text("#hits").split()[0] != "0"


def test_the_keyboard_reaches_everything(page, browser):
    page(steps=2)
    reachable = set()
    first = None
    for _ in range(60):
        browser.press("Tab")
        where = browser.run(
            "(() => { const e = document.activeElement;"
            "return e.id || e.getAttribute('aria-label') || e.name || e.tagName })()"
        )
        if where == first:
            break
        first = first or where
        reachable.add(where)
    controls = browser.run(
        "[...document.querySelectorAll('button, select, input, [tabindex=\"0\"]')]"
        ".filter((e) => e.checkVisibility() && !e.disabled)"
        ".map((e) => e.id || e.getAttribute('aria-label') || e.name)"
    )
    assert set(controls) <= reachable
    assert len([name for name in reachable if name.startswith("completion")]) == 4
    browser.run("document.querySelector('[name=method]:checked').focus()")
    browser.press("ArrowRight")
    assert browser.count(".method") == 8
    browser.press("?")
    assert browser.run("document.getElementById('help').open") is True
    browser.press("Escape")
    assert browser.run("document.getElementById('help').open") is False


def test_arrows_move_by_token_and_by_line(page, browser):
    page(prompts=1, pieces=WORDS[:8], length=200)
    browser.run("document.querySelector('.pane').focus()")

    def at() -> int:
        return int(browser.run(READ)["place"].split()[1])

    browser.press("Home")
    assert at() == 1
    browser.press("ArrowLeft")
    assert at() == 1
    browser.press("ArrowDown")
    below = at()
    box = "(() => {{ const r = {t}.getBoundingClientRect(); return [r.top, r.left] }})()"
    active = browser.run(box.format(t="document.querySelector('.active')"))
    start = browser.run(box.format(t="document.querySelector('.pane .t')"))
    assert below > 2 and active[0] > start[0] + 10 and abs(active[1] - start[1]) < 60
    browser.press("ArrowUp")
    assert browser.run(box.format(t="document.querySelector('.active')"))[0] == start[0]
    browser.press("End")
    assert at() == 200
    browser.press("PageUp")
    assert 1 <= at() < 150
    spoken = browser.text("#announcement")
    assert "update" in spoken and f"token {at()}" in spoken
    assert browser.run(
        "document.querySelector('.pane').getAttribute('aria-activedescendant') ==="
        "document.querySelector('.active').id"
    )


COLOURS = """(() => {
  const box = document.createElement('span');
  document.querySelector('.pane').append(box);
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = (colour) => { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)] };
  const found = {};
  for (const ramp of ['seq', 'pos', 'neg']) {
    found[ramp] = [];
    for (let level = 0; level <= 16; level++) {
      box.className = `t ${ramp} l${level}`;
      const style = getComputedStyle(box);
      found[ramp].push([rgb(style.backgroundColor), rgb(style.color)]);
    }
  }
  box.remove();
  return found;
})()"""

# Linear RGB as seen without L, M or S cones (Viénot et al. 1999; Machado et al. 2009 for S).
DEFICIENCIES = {
    "none": np.eye(3),
    "protanopia": [[0.1124, 0.8876, 0], [0.1124, 0.8876, 0], [0.004, -0.004, 1]],
    "deuteranopia": [[0.2927, 0.7073, 0], [0.2927, 0.7073, 0], [-0.0223, 0.0223, 1]],
    "tritanopia": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}


def linear(rgb) -> np.ndarray:
    value = np.asarray(rgb) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def luminance(rgb) -> float:
    return float(linear(rgb) @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_are_readable_and_safe_for_the_colour_blind(theme, page, browser):
    page(prompts=1)
    browser.run(f"document.documentElement.dataset.theme = '{theme}'")
    ramps = browser.run(COLOURS)
    for ramp in ramps.values():
        for background, text in ramp:
            light, dark = sorted((luminance(background), luminance(text)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5
        steps = np.diff([luminance(background) for background, _ in ramp])
        assert (steps < 0).all() if theme == "light" else (steps > 0).all()
    for matrix in DEFICIENCIES.values():
        up, down = (np.asarray(matrix) @ linear(ramps[r][12][0]) for r in ("pos", "neg"))
        assert np.abs(up - down).max() > 0.1


def test_print_shows_every_token(page, browser):
    page(prompts=1, group=2, length=900)
    pdf = browser.send("Page.printToPDF", printBackground=True)["data"]
    assert len(pdf) > 20_000
    browser.send("Emulation.setEmulatedMedia", media="print")
    try:
        assert browser.count(".pane .t") == 900 + 893
        hidden = "getComputedStyle(document.getElementById('inspector')).display"
        assert browser.run(hidden) == "none"
        clipped = (
            "[...document.querySelectorAll('.pane')].map((p) => p.scrollHeight - p.clientHeight)"
        )
        assert browser.run(clipped) == [0, 0]
    finally:
        browser.send("Emulation.setEmulatedMedia", media="")


def test_a_trace_of_bare_ids_still_shows(tmp_path, view, browser):
    everything = ("piece", "logp", "old_logp", "log_pmax", "mode_id", "is_mode", "entropy", "delta")
    rest = ("credit", "advantage", "top_ids", "top_logps", "top_pieces", "tail_p2", "tail_p2_logp")
    write_trace(tmp_path / "t", drop=everything + rest)
    browser.open(view(tmp_path / "t"))
    first = Trace.open(tmp_path / "t").tokens("token_id")["token_id"][0]
    assert browser.run(f"{TOKENS}[0].textContent") == f"⟨{first}⟩"
    browser.press("v", "1")
    assert json.dumps(browser.run(READ))


def test_odd_facts_show_as_they_are(tmp_path, view, browser):
    odd = [("constructor", float("nan")), ("__proto__", -1e10), (None, None), ("\u202e<b>", 0.5)]
    rows = [
        {"prompt_id": "q", "sample": i, "tokens": i, "verdict": verdict, "reward": reward}
        for i, (verdict, reward) in enumerate(odd)
    ]
    with TraceWriter(tmp_path / "t", {"model": "<b>", "method": 7, "temperature": []}) as writer:
        writer.append(rows, {"token_id": range(6), "entropy": [float("nan")] * 5 + [1e30]})
    browser.open(view(tmp_path / "t"))
    facts = browser.run("[...document.querySelectorAll('.facts')].map((f) => f.innerText)")
    assert [text.split("\n")[1] for text in facts] == [
        "? constructor",
        "? __proto__",
        "? no verdict",
        "? RLO<b>",
    ]
    assert "reward −1.0e+10" in facts[1].split("\n") and "reward \u2013" in facts[0]
    assert browser.text("#model") == "<b>"
    assert "No tokens." in browser.run("document.querySelector('.pane').innerText")


def test_long_completions_are_all_there(page, browser):
    trace = page(prompts=1, group=2, length=6000)
    browser.run("document.querySelector('.pane').focus()")
    browser.press("End")
    assert browser.run(READ)["place"].startswith("token 6000 of 6000")
    visible = browser.run(
        "(() => { const a = document.querySelector('.active').getBoundingClientRect();"
        "const p = document.querySelector('.pane').getBoundingClientRect();"
        "return a.top >= p.top - 1 && a.bottom <= p.bottom + 1 })()"
    )
    assert visible is True
    browser.run("window.dispatchEvent(new Event('beforeprint'))")  # off screen, none is kept
    assert browser.count(".pane .t") == len(trace)
    text = browser.text(".pane").replace("↵", "")
    whole = trace.rollouts["completion"][0].as_py()
    assert text.replace("\n", "") == whole.replace("\n", "")
