"""Templates to one self-contained HTML file."""

from __future__ import annotations

import re
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from artifacts.errors import UnavailableError
from pipeline.report import charts
from pipeline.voice import counted

OUTSIDE = re.compile(
    r"""(?:src|href|action|poster|data)\s*=\s*["']?\s*(?:[a-z]+:)?//|@import|url\(\s*["']?(?!data:|#)""", re.I
)
"""Anything by which a page would load something from elsewhere."""


def environment() -> jinja2.Environment:
    """Jinja environment over ``templates/``: escaping always on, a missing value is an error."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("pipeline.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "us": charts.microseconds,
        "q": charts.quantity,
        "factor": factor,
        "percent": percent,
        "counted": counted,
        "anchor": anchor,
        "breakable": breakable,
    }
    return env


def render(template: str, **values: Any) -> str:
    """Render one page from ``templates/<template>``, with version and time of writing at its foot."""
    return environment().get_template(template).render(**stamp(), **values)


def write(path: Path, html: str) -> Path:
    """Write ``html`` to ``path`` in one step, so that a reader never sees half a page.

    Raises:
        UnavailableError: the folder cannot be written.
    """
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(html, encoding="utf-8", errors="replace")
        draft.replace(path)
    except OSError as problem:
        raise UnavailableError(
            f"cannot write {path} ({problem.strerror})", "name a place that can be written"
        ) from problem
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return path


def stamp() -> dict[str, str]:
    """What stands at the foot of a page; a checkout that is not installed has no version."""
    try:
        known = version("htam-kernels")
    except PackageNotFoundError:
        known = "from a checkout"
    return {"version": known, "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}


def factor(value: float | None) -> str:
    """A speedup or ratio, ``1.42×``; a dash for None."""
    if value is None:
        return "–"
    return f"{value:.2f}×" if value < 100 else f"{value:,.0f}×"


def percent(value: float | None) -> str:
    """A share as whole percent."""
    return "–" if value is None else f"{100 * value:.0f} %"


def breakable(text: str) -> Markup:
    """A name that may go on in the next line after a slash or an underscore."""
    return Markup(re.sub(r"([/_])(?=\w)", r"\1<wbr>", str(escape(text))))  # escaped before the marks go in


def anchor(text: str) -> Markup:
    """A fragment name that is safe as an HTML id."""
    return Markup(re.sub(r"[^a-zA-Z0-9_-]+", "-", text).strip("-"))  # only safe characters are left
