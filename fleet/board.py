"""The live board: every duck of every domain at a glance. Pure: state in, a picture out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from duckfleet.fleet import console
from duckfleet.fleet.lifecycle import STATES
from duckfleet.fleet.rosters import Evidence
from duckfleet.inventory.site import Duck, Site
from duckfleet.inventory.store import Event

CELL_WIDTH = 36
_MARKS = {"serving": "◆", "placed": "●", "healthy": "●", "degraded": "▲", "quarantined": "■", "lost": "✗", "off": "○"}


def board(site: Site, evidence: Mapping[str, Evidence], events: Sequence[Event], now_s: float) -> RenderableType:
    """A panel a domain, eight ducks high, a line of totals above and the newest events below."""
    panels = [_domain(site, name, evidence, now_s) for name in (domain.name for domain in site.domains)]
    newest = Table.grid(padding=(0, 2))
    for event in events:
        change = console.state_text(event.to_state) if event.to_state else Text("")
        newest.add_row(
            Text(console.moment(event.at_s), "dim"),
            Text(event.duck or "fleet", "bold"),
            Text(event.kind, "cyan"),
            change,
        )
    return Group(_totals(site, evidence), Columns(panels, padding=(0, 1)), newest)


def _totals(site: Site, evidence: Mapping[str, Evidence]) -> Text:
    counts = Counter(_state(evidence, duck) for duck in site.ducks)
    line = Text(f"{site.name}: {len(site.ducks)} ducks   ", "bold")
    for state in STATES:
        if counts[state]:
            line += Text(f"{counts[state]} ") + console.state_text(state) + Text("   ")
    return line


def _domain(site: Site, name: str, evidence: Mapping[str, Evidence], now_s: float) -> Panel:
    domain = site.domain(name)
    grid = Table.grid(padding=(0, 1))
    for duck in site.ducks:
        if duck.domain == name:
            grid.add_row(*_duck(duck, evidence, now_s))
    return Panel(grid, title=f"{name} · {domain.interface}", title_align="left", border_style="dim", width=CELL_WIDTH)


def _duck(duck: Duck, evidence: Mapping[str, Evidence], now_s: float) -> tuple[Text, Text, Text, Text]:
    state = _state(evidence, duck)
    style = console.STATE_STYLE.get(state, "")
    known = evidence.get(duck.mac)
    since = console.age(now_s - known.row.since_s) if known and known.row else ""
    held = Text("⚑" if known and known.holds else " ", "magenta")
    name = Text(duck.name if len(duck.name) <= 12 else duck.name[:11] + "…")
    return Text(_MARKS.get(state, "·"), style) + held, name, Text(state, style), Text(since, "dim")


def _state(evidence: Mapping[str, Evidence], duck: Duck) -> str:
    known = evidence.get(duck.mac)
    return known.row.state if known and known.row else "unknown"
