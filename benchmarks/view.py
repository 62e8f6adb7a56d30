"""How long credit pages take to open, and whether they scroll smoothly.

    python benchmarks/view.py

Makes traces of random numbers, writes their pages with `acpo view`, and opens them in headless
Chromium (software rendering, one window of 1440 x 900). Writes results/view.json.

Open: from the start of navigation until a frame is drawn with every token that is in view, best
and median of the rounds.
Scroll: a wheel gesture through a completion, at 3000 px/s; long tasks are those the browser reports
(more than 50 ms on the main thread). Both are wall time, so the file also holds the machine's load
and the CPU time of the page's main thread, which other processes change little.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from environment import environment  # noqa: E402

from viewer.browser import CHROMIUM, Browser  # noqa: E402 (the tests' own)
from viewer.test_training_traces import write_run  # noqa: E402
from viewer.traces import write_trace  # noqa: E402

SHAPES = {
    "1 completion of 32,768": (1, 32_768),
    "8 completions, 32,768 in all": (8, 4_120),
    "1 completion of 200,000": (1, 200_000),
}
MOST_SECONDS = 2.0
LONG_TASKS = """
window.longTasks = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.longTasks.push(entry.duration);
}).observe({ type: "longtask", buffered: true });
"""
FRAMES = """
window.frameTimes = [];
(function frame(now) { window.frameTimes.push(now); requestAnimationFrame(frame); })(0);
"""
SETTLED = """new Promise((done) => {
  const inView = (element, box) => {
    const own = element.getBoundingClientRect();
    return own.bottom > Math.max(box.top, 0) && own.top < Math.min(box.bottom, innerHeight);
  };
  const missing = () => [...document.querySelectorAll('.pane')].some((pane) => {
    const box = pane.getBoundingClientRect();
    return [...pane.children].some((block) => inView(block, box) && !block.firstChild);
  });
  const look = () => (missing() ? requestAnimationFrame(look)
    : requestAnimationFrame(() => done(performance.now())));
  look();
})"""


def cpu_seconds(browser: Browser) -> float:
    metrics = browser.send("Performance.getMetrics")["metrics"]
    return next(m["value"] for m in metrics if m["name"] == "TaskDuration")


def open_page(browser: Browser, page: Path) -> dict[str, float]:
    browser.open(page)
    return {"seconds": browser.run(SETTLED) / 1000, "cpu_seconds": cpu_seconds(browser)}


def scroll(browser: Browser, distance: int) -> dict[str, Any]:
    """Once every token has its element, a wheel gesture over the first pane."""
    for _ in range(600):
        if not browser.run("[...document.querySelectorAll('.block')].some((b) => !b.firstChild)"):
            break
        time.sleep(0.1)
    browser.run(f"window.longTasks.length = 0; {FRAMES}")
    box = browser.run(
        "(() => { const b = document.querySelector('.pane').getBoundingClientRect();"
        "return [b.left + 50, b.top + 50] })()"
    )
    gesture = {"x": box[0], "y": box[1], "yDistance": -distance, "speed": 3000}
    cpu = browser.main_thread_tasks(
        lambda: browser.send("Input.synthesizeScrollGesture", gestureSourceType="mouse", **gesture)
    )
    times = browser.run("window.frameTimes.slice(2)")
    gaps = sorted(b - a for a, b in pairwise(times))
    tasks = browser.run("window.longTasks")
    return {
        "scrolled_px": browser.run("document.querySelector('.pane').scrollTop"),
        "frames": len(gaps),
        "cpu_ms_per_frame": round(sum(cpu) / len(gaps), 1),
        "longest_task_cpu_ms": round(max(cpu), 1),
        "tasks_over_50_cpu_ms": sum(task > 50 for task in cpu),
        "frame_ms_median": round(statistics.median(gaps), 1),
        "frame_ms_p95": round(gaps[int(0.95 * len(gaps))], 1),
        "long_tasks": len(tasks),
        "longest_task_ms": round(max(tasks, default=0.0), 1),
    }


def measure(name: str, folder: Path, rounds: int) -> dict[str, Any]:
    group, length = SHAPES[name]
    trace = folder / f"trace{group}-{length}"
    write_trace(trace, prompts=1, group=group, length=length)
    with Browser() as browser:
        opened = open_often(browser, trace, rounds)
        scrolled = scroll(browser, 24_000 // (1 if group == 1 else 4))
    return {"tokens": group * length - 7 * sum(range(group)), **opened, "scroll": scrolled}


def measure_overview(folder: Path, rounds: int) -> dict[str, Any]:
    """A run of ten steps of a hundred prompts, eight completions each, with every prompt shown."""
    run = write_run(folder / "run", steps=10, prompts=100, rewards=(1.0, 0.0) * 4)
    with Browser() as browser:
        opened = open_often(browser, run, rounds, "--prompts", "1000")
        shown = browser.run("document.querySelectorAll('#overview-rows tr').length")
    return {"prompts": shown, **opened}


def open_often(browser: Browser, what: Path, rounds: int, *options: str) -> dict[str, Any]:
    """Write the page of a trace or run, and open it again and again."""
    page = what.with_suffix(".html")
    started = time.perf_counter()
    command = [sys.executable, "-m", "acpo", "view", str(what), "-o", str(page), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    written = time.perf_counter() - started
    browser.send("Performance.enable", timeDomain="threadTicks")
    browser.send("Page.addScriptToEvaluateOnNewDocument", source=LONG_TASKS)
    opens = [open_page(browser, page) for _ in range(rounds)]
    seconds = [run["seconds"] for run in opens]
    return {
        "page_mb": round(page.stat().st_size / 1e6, 2),
        "acpo_view_s": round(written, 2),
        "open_s_best": round(min(seconds), 3),
        "open_s_median": round(statistics.median(seconds), 3),
        "open_cpu_s": round(statistics.median(run["cpu_seconds"] for run in opens), 3),
        "opens_within_2s": statistics.median(seconds) < MOST_SECONDS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "view.json")
    arguments = parser.parse_args()
    where = environment("acpo")
    with tempfile.TemporaryDirectory() as folder:
        pages = {name: measure(name, Path(folder), arguments.rounds) for name in SHAPES}
        overview = measure_overview(Path(folder), arguments.rounds)
    version = subprocess.run([CHROMIUM, "--version"], capture_output=True, text=True, check=True)
    report = {
        "environment": {**where, "chromium": version.stdout.split()[1]},
        "load_average_after": round(os.getloadavg()[0], 2),
        "pages": pages,
        "overview": overview,
    }
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
