"""The frame of every page: one file, no network, and nothing runs but what the policy names.

What a page shows is model output, so hostile. It travels as JSON in blocks that no browser
executes, and the page's own script puts it on screen as text nodes only. The content-security
policy names that script and the style sheet by hash, forbids every request, and turns assignments
of markup (`innerHTML`) into errors.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from acpo.errors import ACPOError
from acpo.linefile import write_whole
from acpo.texts import whole_characters

TOKEN_STYLES = ("base.css", "tokens.css")
"""Style sheets of a page that shows tokens."""

TOKEN_SCRIPTS = ("dom.js", "data.js", "text.js", "pane.js")
"""Scripts of a page that shows tokens: decoding of blocks, visible text, the scrolling pane."""

# Typed arrays of the browser, little-endian.
DTYPES = {"f4": "<f4", "i4": "<i4", "u4": "<u4", "u1": "u1"}


def write_page(path: Path, page: str) -> None:
    """Write a page, over an older one or none: a slip may name a trace's file or annotations."""
    if path.is_file():
        with path.open("rb") as older:
            begins = older.read(15).lower()
        if begins != b"<!doctype html>":
            raise ACPOError(
                f"--output {path}: there is something else in it; give another name, or remove it"
            )
    write_whole(path, page)


def render_page(
    *,
    template: str,
    title: str,
    styles: Sequence[str],
    scripts: Sequence[str],
    blocks: Mapping[str, Any],
    live: bool = False,
) -> str:
    """An HTML page.

    Args:
        template: Extends `shell.html`; filled with autoescape on.
        title: Of the window.
        styles, scripts: Joined in order, the scripts into one strict function scope.
        blocks: Data by element id; `readBlock(id)` in the page gives it back.
        live: Whether it may ask the server it came from.
    """
    style = "".join(_source(name) for name in styles)
    script = '"use strict";\n(() => {\n' + "".join(_source(name) for name in scripts) + "})();\n"
    loader = PackageLoader("acpo.viewer", "page")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    return environment.get_template(template).render(
        title=whole_characters(title),
        policy=content_security_policy(style=style, script=script, live=live),
        style=Markup(style),
        script=Markup(script),
        blocks={name: Markup(to_json(value)) for name, value in blocks.items()},
    )


def content_security_policy(*, style: str, script: str, live: bool) -> str:
    """Only this style sheet and this script; no request, no frame, no form, no markup from text."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(style)}'",
            *(["connect-src 'self'"] if live else []),
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def to_json(value: Any) -> str:
    """JSON that is safe inside a script element: ASCII, without `<`, `>` and `&`."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def packed(values: np.ndarray) -> dict[str, str]:
    """An array as the page's `unpack` reads it: the type's name and base64."""
    kind = f"{values.dtype.kind}{values.dtype.itemsize}"
    data = np.ascontiguousarray(values).astype(DTYPES[kind], copy=False)
    return {"t": kind, "b": base64.b64encode(data.tobytes()).decode()}


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _source(name: str) -> str:
    return (files("acpo.viewer") / "page" / name).read_text(encoding="utf-8")
