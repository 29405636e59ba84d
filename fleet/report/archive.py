"""Reports on disk: every one in three forms under its time, `latest.*` the newest, old ones removed."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from duckfleet.fleet.report.html import render_html
from duckfleet.fleet.report.markdown import render_markdown
from duckfleet.fleet.report.page import PAGE_FORMAT, Page
from duckfleet.inventory.codec import from_plain, to_plain
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.whole_file import write_whole

KEEP = 60  # reports
LATEST = "latest"
SUFFIXES = (".html", ".md", ".json")


@dataclass(frozen=True, slots=True)
class Rendered:
    """One report in its three forms."""

    page: Page
    html: str
    markdown: str
    json: str

    @property
    def stem(self) -> str:
        """The name of its files, without suffix."""
        return stem_of(self.page.at_s)


def stem_of(at_s: float) -> str:
    """To the millisecond: two reports of one second are two."""
    return time.strftime("%Y-%m-%dT%H%M%S", time.gmtime(at_s)) + f"-{int(at_s * 1000) % 1000:03}Z"


def render(page: Page) -> Rendered:
    return Rendered(page, render_html(page), render_markdown(page), page_json(page))


def page_json(page: Page) -> str:
    """The record, with what follows from it first: worst severity, exit code and verdict."""
    derived = {"verdict": page.verdict, "worst": page.worst or None, "exit_code": page.exit_code}
    return json.dumps({**derived, **to_plain(page)}, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def page_of(text: str) -> Page:
    """A page from its JSON. Raises `OperatorError` when it is none of this version."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OperatorError(f"is no JSON ({error})") from error
    if not isinstance(value, dict) or value.get("format") != PAGE_FORMAT:
        raise OperatorError("is of another format")
    return from_plain(Page, {key: item for key, item in value.items() if key not in ("verdict", "worst", "exit_code")})


def latest(folder: Path) -> tuple[Page | None, str]:
    """(the last report, or None; why there is none though a file is there)."""
    path = folder / (LATEST + ".json")
    try:
        return page_of(path.read_text(encoding="utf-8")), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, UnicodeDecodeError, OperatorError) as error:
        return None, f"{path} cannot be compared with: {error}"


def save(folder: Path, rendered: Rendered) -> Path:
    """Write the report's three files and `latest.*`, each whole or not at all. Returns the HTML file's path."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for suffix, text in zip(SUFFIXES, (rendered.html, rendered.markdown, rendered.json), strict=True):
        for stem in (rendered.stem, LATEST):
            write_whole(folder / (stem + suffix), text)
    _prune(folder)
    return folder / (rendered.stem + ".html")


def load(folder: Path, at_s: float) -> Rendered | None:
    """A kept report; None when it was removed meanwhile."""
    try:
        html, markdown, text = ((folder / (stem_of(at_s) + suffix)).read_text("utf-8") for suffix in SUFFIXES)
        return Rendered(page_of(text), html, markdown, text)
    except (OSError, UnicodeDecodeError, OperatorError):
        return None


def _prune(folder: Path) -> None:
    stems = sorted({path.stem for path in folder.iterdir() if path.suffix in SUFFIXES and path.stem[:1].isdigit()})
    for stem in stems[:-KEEP]:
        for suffix in SUFFIXES:
            (folder / (stem + suffix)).unlink(missing_ok=True)
