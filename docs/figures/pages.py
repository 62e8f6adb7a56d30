"""Screenshots of the credit page, docs/figures/view*.png, and of the review page, review.png.

    python docs/figures/pages.py

Traces the packaged chain model, trains it as `make quickstart` does, traces it again, and opens the
pages of both in headless Chromium. `--trace DIR` takes a trace that was made so before.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

FIGURES = Path(__file__).resolve().parent
ROOT = FIGURES.parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from viewer.browser import Browser  # noqa: E402 (the tests' own)

MODEL = "package:acpo/tasks/checkpoints/chain"
TRACE = ("--task", "chain", "--n", "12", "--group", "8", "--max-tokens", "64")

# What is pressed before each picture; "focus N" puts the keyboard into the Nth pane, "tokens"
# scrolls past the table of prompts.
PICTURES = {
    "view": ("[", "b", "focus 3", "mismatch", "tokens"),
    "view-group": ("focus 0", "mismatch"),
    "view-dark": ("[", "t", "t", "5", "v", "focus 1", "mismatch", "tokens"),
}


def acpo(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "acpo", *arguments], check=True)


def make_trace(folder: Path) -> Path:
    trace, run = folder / "trace", folder / "quickstart"
    acpo("trace", MODEL, *TRACE, "--output", str(trace))
    acpo("train", str(ROOT / "recipes" / "quickstart.yaml"), "--output_dir", str(run))
    acpo("trace", str(run), *TRACE, "--output", str(trace), "--step", "40")
    return trace


def act(browser: Browser, action: str) -> None:
    if action.startswith("focus "):
        browser.run(f"document.querySelectorAll('.pane')[{action.split()[1]}].focus()")
    elif action == "tokens":
        edge = "document.querySelector('{}').getBoundingClientRect().bottom"
        browser.run(f"scrollBy(0, {edge.format('#overview')} - {edge.format('header')})")
    elif action == "mismatch":  # go to the focused completion's first token beside the mode
        steps = browser.run(
            "[...document.activeElement.querySelectorAll('.t')]"
            ".findIndex((t) => t.classList.contains('mismatch'))"
        )
        browser.press("Home", *["ArrowRight"] * max(steps, 0))
    else:
        browser.press(action)
    browser.frames()


def save(browser: Browser, name: str) -> None:
    file = FIGURES / f"{name}.png"
    browser.screenshot(file)
    with Image.open(file) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)
    print(file.relative_to(ROOT), f"{file.stat().st_size / 1000:.0f} kB")


def save_review(trace: Path, folder: Path) -> None:
    """The second item of the packaged model's review, the first accepted."""
    annotations, page = folder / "annotations.jsonl", folder / "review.html"
    options = ("--annotator", "exact", "--step", "0", "-o", str(annotations))
    acpo("annotate", "propose", str(trace), *options)
    acpo("annotate", "review", str(trace), "--annotations", str(annotations), "-o", str(page))
    with Browser(width=1280, height=590, scale=1.5) as browser:
        browser.open(page)
        browser.run("document.getElementById('reviewer').focus()")
        browser.press(*"Ada", "Escape", "a")
        browser.frames()
        save(browser, "review")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        page = folder / "page.html"
        trace = arguments.trace or make_trace(folder)
        acpo("view", str(trace), "-o", str(page))
        with Browser(width=1280, height=760, scale=1.5) as browser:
            for name, actions in PICTURES.items():
                browser.open(page)
                for action in actions:
                    act(browser, action)
                save(browser, name)
        save_review(trace, folder)


if __name__ == "__main__":
    main()
