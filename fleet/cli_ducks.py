"""`duckctl probe`, `status`, `log`: what is known of the ducks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.text import Text

from duckfleet.fleet import console
from duckfleet.fleet.cli_options import Ducks, Json, fleet_of


def register(app: typer.Typer) -> None:
    app.command("probe")(probe)
    app.command("status")(status)
    app.command("log")(log)
    app.command("watch")(watch)
    app.command("hold")(hold)
    app.command("release")(release)


def probe(
    context: typer.Context,
    ducks: Ducks = None,
    seconds: Annotated[
        int, typer.Option(min=0, max=900, help="Test free memory, and keep all cores busy, for so long each.")
    ] = 0,
    ssh: Annotated[
        bool, typer.Option("--ssh", help="Ask the box's own tools over ssh too, where its daemon says less or nothing.")
    ] = False,
    at_once: Annotated[int, typer.Option(min=1, max=64, help="How many ducks are measured at a time.")] = 8,
    timeout: Annotated[
        float,
        typer.Option(min=1.0, metavar="S", help="How long measuring one may take, beside --seconds."),
    ] = 30.0,
    json: Json = False,
) -> None:
    """Ask ducks what they are and measure them; the evidence that place and serve rest on.

    A probe that could not run is `unknown`, never bad and never good. A duck that cannot serve or would compute wrongly
    goes into quarantine, and comes out when a later probe has looked for that again and found nothing. --seconds 90
    reaches past the processor's turbo window. Exit code 3 unless all are healthy.
    """
    from duckfleet.fleet.cli import EXIT_SOME_DUCKS
    from duckfleet.fleet.probing import ProbeOptions, probe_all
    from duckfleet.inventory.site import Duck

    fleet = fleet_of(context)
    chosen = fleet.site.select(ducks or [])
    with console.progress_bars() as progress:
        task = progress.add_task(f"probing {len(chosen)} ducks", total=len(chosen), unit="ducks")

        def report(_duck: Duck) -> None:
            progress.advance(task)

        options = ProbeOptions(
            seconds=seconds, at_once=at_once, ssh_dir=fleet.keys_dir if ssh else None, timeout_s=timeout
        )
        results = probe_all(fleet.site, fleet.known_store, fleet.keys, chosen, report, options)
    if json:
        console.print_json([_probe_json(result) for result in results])
    else:
        console.out.print(
            console.table(
                ("duck", "verdict", "cpu", "threads", "RAM", "read", "kernels", "remarks"),
                [_probe_row(result) for result in results],
                numeric=("threads", "RAM", "read"),
            )
        )
        silent = [result.duck.name for result in results if result.silent]
        if silent:
            console.note(f"next: `duckctl wake --wait {' '.join(silent)}`, then probe again")
    if any(result.verdict != "healthy" for result in results):
        raise typer.Exit(EXIT_SOME_DUCKS)


def _probe_json(result: Any) -> dict[str, Any]:
    return {
        "duck": result.duck.name,
        "verdict": result.verdict,
        "reasons": result.reasons,
        "facts": result.facts,
        "took_s": round(result.took_s, 3),
    }


def _probe_row(result: Any) -> tuple[Any, ...]:
    from duckfleet.runtime.control import release_remark

    facts = result.facts
    if facts is None:
        why = "; ".join(reason.removeprefix(f"duck {result.duck.name}").lstrip(": ") for reason in result.reasons)
        return (result.duck.name, console.state_text(result.verdict), "", "", "", "", "", why)
    return (
        result.duck.name,
        console.state_text(result.verdict),
        facts.cpu,
        str(facts.num_threads or ""),
        console.size(facts.ram_bytes) if facts.ram_bytes else "",
        f"{facts.read_bandwidth_bytes_per_s / 1e9:.1f} GB/s" if facts.read_bandwidth_bytes_per_s else "",
        facts.kernels,
        "; ".join([*result.reasons, *filter(None, [release_remark(facts.duckd_version)])]),
    )


def status(
    context: typer.Context,
    ducks: Ducks = None,
    counters: Annotated[
        bool, typer.Option("--counters", help="Ask each duck and the server now: what they got, and dropped by kind.")
    ] = False,
    json: Json = False,
) -> None:
    """Show every duck: its state, since when, and what it holds. Exit code 3 when some cannot serve.

    With --counters each duck is asked for what it dropped since its start, by kind: datagrams, and connections and
    frames of its control plane; and the running server for the datagrams that this host dropped.
    """
    from duckfleet.fleet.announcement import running_server
    from duckfleet.fleet.cli import EXIT_SOME_DUCKS
    from duckfleet.fleet.drop_counters import ask_ducks, ask_server
    from duckfleet.fleet.failovers import recent_failovers
    from duckfleet.fleet.musters import gather
    from duckfleet.fleet.rosters import why_missing
    from duckfleet.runtime.control import release_remark

    fleet = fleet_of(context)
    chosen = fleet.site.select(ducks or [])
    store = fleet.known_store
    evidence = gather(fleet.site, store)
    placements = store.latest_placements()
    counted = ask_ducks(fleet.site, fleet.keys, chosen) if counters else {}
    failovers = recent_failovers(store)
    server = running_server(fleet.state_dir)
    now_s = time.time()
    rows, values = [], []
    not_well = 0
    for duck in chosen:
        known = evidence[duck.mac]
        assert known.row is not None
        reason = why_missing(known, now_s)
        not_well += reason is not None
        placement = placements.get(duck.mac)
        held = f"{placement.model} rank {placement.rank}" if placement and known.row.state in _HOLDING else ""
        probed = f"{console.age(now_s - known.probed_at_s)} ago" if known.facts else "never"
        since = console.age(now_s - known.row.since_s)
        release = release_remark(known.facts.duckd_version) if known.facts else ""
        rows.append(
            (
                duck.name,
                duck.address,
                duck.rack,
                console.state_text(known.row.state),
                since,
                probed,
                held,
                _remark(reason, known.row.state) if reason else release or duck.notes,
            )
        )
        values.append(
            {
                "duck": duck.name,
                "mac": duck.mac,
                "address": duck.address,
                "domain": duck.domain,
                "rack": duck.rack,
                "notes": duck.notes,
                "state": known.row.state,
                "since_s": known.row.since_s,
                "evidence": known.row.evidence,
                "probed_at_s": known.probed_at_s or None,
                "facts": known.facts,
                "holds": known.holds,
                "placement": placement,
                "missing": reason,
                "release": release or None,
                "failover": next((past for past in reversed(failovers) if duck.name in past.ducks), None),
                **({"datagrams": counted[duck.mac]} if counters else {}),
            }
        )
    if json:
        console.print_json(values)
    else:
        columns = ("duck", "address", "rack", "state", "since", "probed", "holds", "remarks")
        console.out.print(console.table(columns, rows, numeric=("since", "probed")))
        if failovers:
            last = failovers[-1]
            took = f", silent for {last.silent_ms:.0f} ms, replaced in {last.took_ms:.0f} ms" if last.took_ms else ""
            count = sum(past.kind == "taken_over" for past in failovers)
            ended = "" if server is not None else " (that server has ended)"
            console.out.print(
                f"failovers: {count} (duties of generation {last.generation}), the last news "
                f"{console.age(now_s - last.at_s)} ago: {last.what}{took}{ended}",
                soft_wrap=True,
            )
        if counters:
            lines = [_counted_row(duck.name, counted[duck.mac]) for duck in chosen]
            if server is not None:
                lines.append(_counted_row("this host", ask_server(server.url)))
            named = ("duck", "datagrams", "dropped", "by kind")
            console.out.print(console.table(named, lines, numeric=("datagrams", "dropped")))
    if not_well:
        raise typer.Exit(EXIT_SOME_DUCKS)


_HOLDING = ("placed", "serving")


def _remark(reason: str, state: str) -> str:
    """The reason without what the column of states says already, and without the advice."""
    return reason.partition("; `")[0].removeprefix(f"is {state}").lstrip(": ").removeprefix("but ")


def _counted_row(name: str, counted: Any) -> tuple[str, str, str, str]:
    if counted.error:
        return (name, "", "", counted.error)
    kinds = [f"{kind} {count}" for kind, count in counted.dropped.items() if count]
    kinds += [f"control {kind} {count}" for kind, count in counted.control.items() if count]
    received = "" if counted.received is None else str(counted.received)
    return (name, received, str(sum(counted.dropped.values())), ", ".join(kinds))


def log(
    context: typer.Context,
    ducks: Ducks = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many of the newest lines.")] = 50,
    json: Json = False,
) -> None:
    """Show the event log: every change of a duck's state, with its evidence."""
    fleet = fleet_of(context)
    macs = [duck.mac for duck in fleet.site.select(ducks)] if ducks else []
    events = fleet.store.events(macs, limit=limit)
    if json:
        console.print_json(events)
        return
    width = max((len(event.duck) for event in events), default=0)
    for event in events:
        head, evidence = _log_head(event, width), _log_evidence(event)
        if not console.out.is_terminal or head.cell_len + evidence.cell_len <= console.out.width:
            console.out.print(head + evidence, soft_wrap=True)
        else:  # what does not fit is set below, indented, so that the times stay a column
            console.out.print(head, soft_wrap=True)
            console.out.print(Padding(Text(evidence.plain.strip(), "dim"), (0, 0, 0, 10)))


def _log_head(event: Any, width: int) -> Text:
    line = Text(console.moment(event.at_s) + "  ", "dim") + Text((event.duck or "fleet").ljust(width) + "  ", "bold")
    return line + _change(event) + Text(f"  {event.kind}", "cyan")


def _log_evidence(event: Any) -> Text:
    line = Text()
    for key, value in event.evidence.items():
        line += Text(f"  {key} ", "dim") + Text(_short(value), "")
    return line + Text(f"  by {event.actor}", "dim")


def _change(event: Any) -> Text:
    if not event.to_state or event.from_state == event.to_state:
        return console.state_text(event.to_state)
    return console.state_text(event.from_state) + " → " + console.state_text(event.to_state)


def _short(value: Any) -> str:
    match value:
        case bool():
            text = "yes" if value else "no"
        case float():
            text = f"{value:.6g}"
        case Mapping():
            text = ", ".join(f"{key} {_short(part)}" for key, part in value.items())
        case list() | tuple():
            text = ", ".join(map(_short, value))
        case _:
            text = str(value)
    return text if len(text) <= 120 else text[:117] + "…"


def watch(
    context: typer.Context,
    interval: Annotated[float, typer.Option(min=0.1, metavar="S", help="How often to look.")] = 0.5,
    once: Annotated[bool, typer.Option("--once", help="Show the board once and end.")] = False,
) -> None:
    """A live board of the fleet: every duck's state by domain, and the newest events. Ctrl-C ends it."""
    from rich.live import Live

    from duckfleet.fleet.board import board
    from duckfleet.fleet.musters import gather

    fleet = fleet_of(context)
    store = fleet.known_store

    def look() -> Any:
        return board(fleet.site, gather(fleet.site, store), store.events(limit=8), time.time())

    if once or not console.out.is_terminal:
        console.out.print(look())
        return
    with Live(look(), console=console.out, screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            live.update(look(), refresh=True)


def hold(
    context: typer.Context,
    ducks: Annotated[list[str], typer.Argument(metavar="DUCKS...", help="Which ducks.")],
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why; shown wherever the duck is left out.")],
) -> None:
    """Keep ducks out of service until a person releases them: automation never lifts this hold."""
    from duckfleet.fleet import lifecycle

    fleet = fleet_of(context)
    store = fleet.known_store
    for duck in fleet.site.select(ducks):
        store.add_hold(duck.mac, "human", reason)
        store.transition(duck, "quarantined", {"reason": reason, "kind": "human"}, lifecycle.next_state)
        console.out.print(f"{duck.name} is held: {reason}", markup=False, soft_wrap=True)


def release(
    context: typer.Context,
    ducks: Annotated[list[str], typer.Argument(metavar="DUCKS...", help="Which ducks.")],
    automatic: Annotated[
        bool, typer.Option("--automatic", help="Lift what automation holds too: you know better.")
    ] = False,
) -> None:
    """Lift a person's hold. A duck that automation holds too stays in quarantine for that reason."""
    from duckfleet.fleet import lifecycle

    fleet = fleet_of(context)
    store = fleet.known_store
    for duck in fleet.site.select(ducks):
        lifted = store.lift_holds(duck.mac, "human")
        if automatic:
            lifted += store.lift_holds(duck.mac, "automatic")
        others = [hold.reason for hold in store.holds() if hold.mac == duck.mac]
        state = store.ducks()[duck.mac].state
        if others:
            console.out.print(f"{duck.name} stays held: {'; '.join(others)}", markup=False, soft_wrap=True)
        elif state == "quarantined":
            store.transition(duck, "released", {"holds_lifted": lifted}, lifecycle.next_state)
            console.out.print(f"{duck.name} is released; `duckctl wake --wait {duck.name}` and `probe` it")
        else:
            console.out.print(f"{duck.name} was not held")
