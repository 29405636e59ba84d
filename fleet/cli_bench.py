"""`duckctl bench`: one contract for every benchmark."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from duckfleet.fleet import console
from duckfleet.fleet.benches import BENCHES
from duckfleet.fleet.cli_options import Json

_NAMES = f"{', '.join(BENCHES)}. Without a name they are listed with their options."


def register(app: typer.Typer) -> None:
    app.command("bench", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(bench)


def bench(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help=_NAMES)] = None,
    json: Json = False,
) -> None:
    """Measure something, as ratios inside one run: a read limit or a peer beside each figure.

    Options of the benchmark follow its name, as in `duckctl bench layer --tp 32`. --json prints one object: bench,
    machine, rows (name, value, unit, ratio, against).
    """
    from duckfleet.fleet import compose
    from duckfleet.fleet.benches import describe_options

    if name is None:
        rows = [(found.name, describe_options(found.rows) or "", found.about) for found in compose.available_benches()]
        if json:
            console.print_json([{"bench": name, "options": options, "about": about} for name, options, about in rows])
        else:
            console.out.print(console.table(("bench", "options", "measures"), rows))
        return
    shown: list[Any] = []
    with console.err.status(f"measuring {name}") as status:
        for row in compose.run_bench(name, context.args):
            shown.append(row)
            status.update(f"measuring {name}: {row.name}")
    if json:
        from duckfleet.fleet.benches import machine

        rows_json = [
            {
                "name": row.name,
                "value": row.value,
                "unit": row.unit,
                **({"ratio": row.ratio, "against": row.against} if row.ratio is not None else {}),
            }
            for row in shown
        ]
        console.print_json({"bench": name, "machine": machine(), "rows": rows_json})
        return
    console.out.print(
        console.table(
            ("name", "value", "unit", "ratio", "against"),
            [
                (row.name, f"{row.value:.4g}", row.unit, "" if row.ratio is None else f"{row.ratio:.3f}", row.against)
                for row in shown
            ],
            numeric=("value", "ratio"),
        )
    )
