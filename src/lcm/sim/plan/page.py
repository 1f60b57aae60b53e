"""A comparison as one self-contained HTML file, which opens without a network.

The file holds the result as JSON, the style of the web interface, and the script that draws the report there, too:
`tools/pages.py` builds both from `web/src/report`. Where they are not built, and where scripts do not run, the page
shows the report as text.
"""

from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Final

import msgspec

from lcm.sim.plan.report import text_of
from lcm.sim.plan.results import Comparison
from lcm.sim.plan.summary import summary

_BUILT: Final = Path(__file__).parents[2] / "api" / "pages" / "report"
_PLAIN_STYLE: Final = "body{margin:2rem auto;max-width:60rem;padding:0 1rem;font:15px/1.5 system-ui,sans-serif}"


@dataclass(frozen=True, slots=True)
class ReportLook:
    """The style and the script of a report."""

    style: str = _PLAIN_STYLE
    script: str = ""


@cache
def read_look(folder: Path = _BUILT) -> ReportLook:
    """Return how a report looks: as the pages do, or plain where they are not built."""
    try:
        return ReportLook((folder / "report.css").read_text("utf-8"), (folder / "report.js").read_text("utf-8"))
    except OSError:
        return ReportLook()


def page_of(comparison: Comparison, look: ReportLook) -> str:
    """Return a comparison as an HTML page."""
    title = escape(comparison.title)
    scripts = f"<script>{_within_script(look.script)}</script>" if look.script else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Plan: {title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><style>{look.style}</style></head>'
        f"<body><main id=report><h1>{title}</h1><pre>{escape(text_of(comparison))}</pre></main>"
        f"<script id=plan type=application/json>{_encode(comparison)}</script>{scripts}</body></html>\n"
    )


def _encode(comparison: Comparison) -> str:
    """Return the result as JSON in which nothing ends a script."""
    return msgspec.json.encode(summary(comparison)).decode().replace("<", "\\u003c")


def _within_script(text: str) -> str:
    return text.replace("</script", "<\\/script").replace("<!--", "\\x3c!--")
