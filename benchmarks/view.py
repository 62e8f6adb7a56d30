"""How long a credit page of 32k tokens takes to open, and whether it scrolls smoothly.

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
import importlib.metadata
import json
import os
import platform
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

from viewer.browser import CHROMIUM, Browser  # noqa: E402 (the tests' own)
from viewer.traces import write_trace  # noqa: E402

SHAPES = {"1 completion of 32,768": (1, 32_768), "8 completions, 32,768 in all": (8, 4_120)}
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
    trace = folder / f"trace{group}"
    write_trace(trace, prompts=1, group=group, length=length)
    page = folder / f"{group}.html"
    started = time.perf_counter()
    command = [sys.executable, "-m", "acpo", "view", str(trace), "-o", str(page)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    written = time.perf_counter() - started
    opens = []
    with Browser() as browser:
        browser.send("Performance.enable", timeDomain="threadTicks")
        browser.send("Page.addScriptToEvaluateOnNewDocument", source=LONG_TASKS)
        for _ in range(rounds):
            opens.append(open_page(browser, page))
        scrolled = scroll(browser, 24_000 // (1 if group == 1 else 4))
    seconds = [run["seconds"] for run in opens]
    return {
        "tokens": group * length - 7 * sum(range(group)),
        "page_mb": round(page.stat().st_size / 1e6, 2),
        "acpo_view_s": round(written, 2),
        "open_s_best": round(min(seconds), 3),
        "open_s_median": round(statistics.median(seconds), 3),
        "open_cpu_s": round(statistics.median(run["cpu_seconds"] for run in opens), 3),
        "opens_within_2s": statistics.median(seconds) < MOST_SECONDS,
        "scroll": scrolled,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "view.json")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        pages = {name: measure(name, Path(folder), arguments.rounds) for name in SHAPES}
    version = subprocess.run([CHROMIUM, "--version"], capture_output=True, text=True, check=True)
    report = {
        "command": "python benchmarks/view.py",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_average": [round(load, 1), round(os.getloadavg()[0], 1)],
        "versions": {
            "acpo": importlib.metadata.version("acpo"),
            "chromium": version.stdout.split()[1],
            "python": platform.python_version(),
        },
        "seed": 0,
        "pages": pages,
    }
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
