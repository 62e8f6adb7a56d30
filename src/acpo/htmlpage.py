"""Markdown as one HTML file that needs nothing else: no script, no request, no foreign markup."""

import base64
import html
from collections.abc import Mapping
from itertools import pairwise

_POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'"
)
_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem;
color:#1b1b1b;background:#fff;overflow-wrap:anywhere}
table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}
th,td{padding:.25rem .7rem;border-bottom:1px solid #ddd;white-space:nowrap;
text-align:left;font-variant-numeric:tabular-nums}
th{white-space:normal;vertical-align:bottom}
img{max-width:100%;background:#fff}
a{color:inherit}
pre{white-space:pre-wrap}
@media (prefers-color-scheme:dark){body{color:#ddd;background:#16181b}th,td{border-color:#333}
img{filter:invert(.92) hue-rotate(180deg)}}
@media print{h2{break-before:page}body{max-width:none}}
"""


def anchor(heading: str) -> str:
    """What a heading of a page is linked to by, behind `#`."""
    return heading.lower().replace(" ", "-")


def html_page(text: str, images: Mapping[str, bytes], *, title: str, style: str = "") -> str:
    """The page; `images` are the PNGs that the text shows, by their addresses in it."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("js-default")  # which escapes markup
    tokens = parser.parse(text)
    for opening, inside in pairwise(tokens):
        if opening.tag == "h2" and opening.nesting == 1:
            opening.attrSet("id", anchor(inside.content))
    body = parser.renderer.render(tokens, parser.options, {})
    for name, png in images.items():
        data = base64.b64encode(png).decode()
        body = body.replace(f'src="{name}"', f'src="data:image/png;base64,{data}"')
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}{style}</style>"
        f"<body>{body}</body></html>\n"
    )
