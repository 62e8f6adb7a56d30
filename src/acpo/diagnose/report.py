"""All analyses in one HTML file that needs nothing beside it."""

import base64
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from acpo.diagnose.finding import Finding, one_line


def html(
    findings: Sequence[Finding],
    missing: Sequence[tuple[str, str]],
    *,
    source: str,
    command: str,
) -> str:
    """The report.

    Args:
        findings: in the order of their sections.
        missing: names of analyses that could not be made, and why.
        source: what was looked at.
        command: what was typed.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    template = environment.from_string(
        (files("acpo.diagnose") / "report.html.j2").read_text(encoding="utf-8")
    )
    sections = [
        {"finding": finding, "image": base64.b64encode(finding.png).decode()}
        for finding in findings
    ]
    return template.render(
        title="Diagnosis",
        source=one_line(source),
        sections=sections,
        missing=missing,
        command=one_line(command),
        version=version("acpo"),
    )
