"""Tables where there is little room."""

from io import StringIO

from rich.console import Console

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
