"""What a person sees: tables and lines on standard output, progress and errors on standard error, or JSON."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from duckfleet.inventory.codec import to_plain

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_UNSEEN_BUT_COLOURS = re.compile(rf"\x1b(?!\[[0-9;]{{0,32}}m)|(?!\x1b){_UNSEEN.pattern}")


class PlainConsole(Console):
    """Shows words that came from elsewhere without what a terminal would obey: colours and places are ours to set."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control is None and _UNSEEN.search(segment.text):
                segment = Segment(_UNSEEN.sub("", segment.text), segment.style)
            yield segment


# No emoji: with them, rich makes a picture of the :cd: in a MAC address.
out = PlainConsole(highlight=False, emoji=False)
err = PlainConsole(stderr=True, highlight=False, emoji=False)

STATE_STYLE = {
    "healthy": "green",
    "placed": "green",
    "serving": "bold green",
    "up": "cyan",
    "waking": "yellow",
    "dhcp": "yellow",
    "loading": "yellow",
    "probing": "yellow",
    "degraded": "magenta",
    "quarantined": "bold magenta",
    "lost": "bold red",
    "off": "dim",
    "unknown": "dim",
}


def state_text(state: str) -> Text:
    return Text(state, STATE_STYLE.get(state, ""))


def mark(ok: bool) -> Text:
    """A dot before a line about a duck."""
    return Text.assemble(("● ", "green" if ok else "red"))


def print_json(value: Any) -> None:
    """One JSON value; records become objects."""
    text = json.dumps(to_plain(value), indent=2, ensure_ascii=False, default=str)
    text = "\n".join(_UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", line) for line in text.split("\n"))
    out.print(text, markup=False, soft_wrap=True)


def coloured(text: str) -> str:
    """Another program's words with their colours, and without anything else that a terminal would obey."""
    return _UNSEEN_BUT_COLOURS.sub("", text)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str | Text]], *, title: str = "", numeric: Sequence[str] = ()
) -> Table:
    """A table; `numeric` columns are aligned to the right; columns without content are left out."""
    filled = [i for i in range(len(columns)) if not rows or any(len(row[i]) for row in rows)]
    columns, rows = [columns[i] for i in filled], [[row[i] for i in filled] for row in rows]
    made = Table(title=title or None, title_justify="left", title_style="bold", header_style="bold", box=_BOX)
    for i, column in enumerate(columns):
        is_number = column in numeric
        whole = is_number or column in _UNBROKEN
        longest = max((len(word) for row in rows for word in str(row[i]).split()), default=0)
        made.add_column(
            column,
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=whole,
            min_width=min(longest, _LONGEST_WHOLE_WORD),
        )
    for row in rows:
        made.add_row(*row)
    return made


def progress_bars() -> Progress:
    """Bars on standard error that vanish when done; where it is no terminal they do not show."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        _Amount(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )


class _Amount(ProgressColumn):
    """Bytes, or a count, as the task says in its field `unit`."""

    def render(self, task: Task) -> Text:
        unit = task.fields.get("unit", "bytes")
        if unit == "bytes":
            done, total = size(int(task.completed)), size(int(task.total)) if task.total is not None else "?"
        else:
            done, total = f"{int(task.completed)}", f"{int(task.total)}" if task.total is not None else "?"
        return Text(f"{done} of {total}" if task.total is not None else done, "cyan")


def size(num_bytes: float) -> str:
    """Bytes for a person, in powers of 1024."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def age(seconds: float) -> str:
    """A span of time for a person: 12 s, 3 min, 5 h, 2 d."""
    for limit, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def moment(at_s: float) -> str:
    """A time of day; with the date when it was not today."""
    then = time.localtime(at_s)
    same_day = time.strftime("%F", then) == time.strftime("%F")
    return time.strftime("%H:%M:%S" if same_day else "%F %H:%M:%S", then)


def note(text: str) -> None:
    """A line about what goes on, on standard error."""
    err.print(text, style="dim", markup=False, soft_wrap=True)


def fail(text: str) -> None:
    """The lines of an error, on standard error."""
    for number, line in enumerate(text.splitlines() or [""]):
        prefix = Text("duckctl: ", "bold red") if number == 0 else Text("         ")
        err.print(prefix + Text(line), soft_wrap=True)


def _box() -> Any:
    from rich import box

    return box.SIMPLE_HEAD


_BOX = _box()
_LONGEST_WHOLE_WORD = 14
_UNBROKEN = ("duck", "address", "control", "mac", "domain", "state", "model", "name", "verdict", "text", "format")
