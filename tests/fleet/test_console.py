"""Tables where there is little room, and words from elsewhere on a terminal."""

import json
from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from duckfleet.fleet import console


def shown(width: int, rows: list[tuple[str, ...]]) -> str:
    text = StringIO()
    columns = ("duck", "address", "state", "since", "probed", "holds", "remarks")
    Console(file=text, width=width).print(console.table(columns, rows, numeric=("since", "probed")))
    return text.getvalue()


def test_words_stay_whole_in_a_table_of_80_columns() -> None:
    held = "smollm2-135m rank 0"
    remark = "held by ann (human): the fan rattles since Tuesday, somebody ought to have a look"
    text = shown(80, [("duck1101", "127.21.1.101", "serving", "15 s", "89 s ago", held, remark)])
    assert "smollm2-135m" in text and "rattles" in text and "somebody" in text
    assert max(map(len, text.splitlines())) <= 80


WICKED = "a\x1b[2J\x1b]0;title\x07b\x9b31mc\r\u202ed\x7f"


def test_words_from_elsewhere_do_not_command_the_terminal() -> None:
    text = StringIO()
    screen = console.PlainConsole(file=text, width=80, force_terminal=True)
    screen.print(console.table(("duck", "what"), [(WICKED, Text(WICKED, "bold red"))]))
    screen.print(WICKED, markup=False, soft_wrap=True)
    said = text.getvalue()
    assert "\x1b[1;31ma[2J]0;titleb31mcd" in said  # our own colours stay
    assert not set("\x07\x9b\r\u202e\x7f") & set(said) and "\x1b[2J" not in said and "\x1b]" not in said


def test_another_programs_colours_stay_and_its_other_commands_go() -> None:
    assert console.coloured(f"\x1b[0;31mfatal\x1b[0m {WICKED}\n") == "\x1b[0;31mfatal\x1b[0m a[2J]0;titleb31mcd\n"


def test_json_keeps_every_character(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"said": WICKED})
    assert json.loads(capsys.readouterr().out) == {"said": WICKED}
