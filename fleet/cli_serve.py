"""`duckctl roster`, `serve`, `chat`: from placed weights to answers."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from duckfleet.fleet import console
from duckfleet.fleet.cli_options import Json, fleet_of
from duckfleet.fleet.context import FleetContext
from duckfleet.inventory.plan import FORMATS

DEFAULT_PORT = 8021

AllowDegraded = Annotated[bool, typer.Option("--allow-degraded", help="Serve on degraded ducks too.")]
MinTp = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Be content with N ducks, though the site has more, or some of the roster are lost."
    ),
]
MaxAge = Annotated[float, typer.Option(min=0.001, metavar="H", help="Oldest probe to rely on, in hours.")]


def register(app: typer.Typer) -> None:
    app.command("roster")(roster)
    app.command("serve")(serve)
    app.command("chat")(chat)


def roster(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--show", help="Only show the one that stands.")] = False,
    allow_degraded: AllowDegraded = False,
    min_tp: MinTp = None,
    max_age: MaxAge = 12.0,
    json: Json = False,
) -> None:
    """Show the signed roster: which duck is which rank, and what its place rests on.

    When ducks were probed since, it is made anew for the same ducks and signed (unless --show). Exit code 3 when
    `serve` would refuse it, with the ducks that are missing and why.
    """
    from duckfleet.fleet.cli import EXIT_SOME_DUCKS
    from duckfleet.fleet.musters import gather, load_current
    from duckfleet.fleet.rosters import objections
    from duckfleet.fleet.serving import renew_roster

    fleet = fleet_of(context)
    standing = load_current(fleet.rosters_dir, fleet.keys)
    evidence = gather(fleet.site, fleet.known_store)
    if not show:
        standing = renew_roster(fleet, standing, evidence)
    now_s = time.time()
    against = objections(
        standing.roster,
        fleet.site,
        evidence,
        now_s,
        max_age_s=max_age * 3600,
        allow_degraded=allow_degraded,
        min_tp=min_tp,
    )
    made = standing.roster
    if json:
        console.print_json({"model": standing.model, "roster": made, "objections": against})
    else:
        rows = [
            (
                "spare" if spare else str(entry.rank),
                entry.duck,
                entry.address,
                console.size(entry.ram_bytes),
                f"{entry.read_bandwidth_bytes_per_s / 1e9:.1f} GB/s",
                str(entry.num_threads),
                console.age(now_s - entry.evidence_at_s),
            )
            for spare, entries in ((False, made.entries), (True, made.spares))
            for entry in entries
        ]
        columns = ("rank", "duck", "address", "RAM", "read", "threads", "evidence")
        console.out.print(console.table(columns, rows, numeric=("rank", "RAM", "read", "threads", "evidence")))
        signature = "unsigned (--no-auth)" if made.signature == "unsigned" else f"signed {made.signature[:16]}…"
        age = console.age(now_s - made.made_at_s)
        console.out.print(f"{standing.model}, generation {made.generation}, made {age} ago, {signature}")
        for missing in against:
            console.out.print(console.mark(False) + f"{missing.duck} {missing.reason}", soft_wrap=True)
    if against:
        raise typer.Exit(EXIT_SOME_DUCKS)


def serve(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(help="Refuse to serve anything but this model.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; others reach all but loopback.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = DEFAULT_PORT,
    ctx: Annotated[
        int | None, typer.Option(min=16, help="Tokens of prompt and answer together. Default: 4096, or what it has.")
    ] = None,
    deadline: Annotated[
        float, typer.Option(min=0.01, metavar="S", help="Longest wait for a duck in one forward.")
    ] = 5.0,
    max_queue: Annotated[int, typer.Option(min=0, help="Requests that may wait; more are answered 429.")] = 64,
    wire_dtype: Annotated[str, typer.Option(metavar="f32|f16|bf16", help="Activations on the wire.")] = "f32",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of this host's share of the work.")] = None,
    host_format: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(FORMATS),
            help="Round the attention's matrices and the head, which stay here, to this. Default: as they are stored.",
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar="DUCKFLEET_API_KEY", help="Ask clients for this key (again for more of them)."),
    ] = None,
    allow_degraded: AllowDegraded = False,
    min_tp: MinTp = None,
    max_age: MaxAge = 12.0,
    silence_floor: Annotated[
        float,
        typer.Option(min=0.005, metavar="S", help="A duck is replaced that was silent this long in a forward, …"),
    ] = 0.05,
    silence_medians: Annotated[
        int,
        typer.Option(min=2, metavar="N", help="… and as long as N usual forwards take, and did not say it is busy."),
    ] = 20,
    supervise: Annotated[
        bool, typer.Option("--supervise", help="Start the server again when it crashes, where there is no systemd.")
    ] = False,
    print_unit: Annotated[
        bool, typer.Option("--print-unit", help="Only print a systemd unit that runs this command.")
    ] = False,
) -> None:
    """Serve the placed model over HTTP: /v1/chat/completions, /v1/models, /health, /metrics.

    Takes the signed roster only when it is green: every duck of the site in it, healthy, probed not too long ago.
    Ctrl-C ends it.
    """
    from duckfleet.fleet.serving import ServeRequest, serve_model

    fleet = fleet_of(context)
    if print_unit:
        from duckfleet.fleet.supervise import unit_text

        console.out.print(unit_text(sys.orig_argv, str(fleet.state_dir)), markup=False, soft_wrap=True)
        return
    if supervise:
        raise typer.Exit(_supervised(fleet, host, port))
    request = ServeRequest(
        model=model,
        host=host,
        port=port,
        ctx=ctx,
        deadline_s=deadline,
        max_queue=max_queue,
        wire_dtype=wire_dtype,
        num_threads=threads,
        host_format=host_format,
        api_keys=tuple(api_key or ()),
        allow_degraded=allow_degraded,
        min_tp=min_tp,
        max_age_s=max_age * 3600,
        silence_floor_s=silence_floor,
        silence_medians=silence_medians,
    )
    serve_model(fleet, request, say=lambda text: console.err.print(text, markup=False, soft_wrap=True))


def _supervised(fleet: FleetContext, host: str, port: int) -> int:
    from duckfleet.fleet.announcement import running_server
    from duckfleet.fleet.supervise import child_command, free_port, supervise

    def is_up(pid: int) -> bool:
        server = running_server(fleet.state_dir)
        return server is not None and server.pid == pid

    command = child_command(sys.orig_argv, port or free_port(host))
    return supervise(command, is_up, lambda text: console.err.print(text, markup=False, soft_wrap=True))


def chat(
    context: typer.Context,
    url: Annotated[
        str | None, typer.Option(help="Where the server is. Default: the one of this state directory.")
    ] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Say this, print the answer, end.")] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    api_key: Annotated[str | None, typer.Option(envvar="DUCKFLEET_API_KEY", help="The server's key.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 512,
    temperature: Annotated[float, typer.Option(min=0, help="0: always the likeliest token.")] = 0.6,
    think: Annotated[
        bool, typer.Option("--think", help="Have the model think before it answers, where it can.")
    ] = False,
) -> None:
    """Talk to the served model in the terminal."""
    from duckfleet.fleet import compose
    from duckfleet.fleet.announcement import running_server

    server = running_server(fleet_of(context).state_dir)
    where = url or (server.url if server else f"http://127.0.0.1:{DEFAULT_PORT}")
    code = compose.chat(
        where,
        message=message,
        system=system,
        api_key=api_key,
        max_tokens=max_tokens,
        temperature=temperature,
        think=think,
    )
    if code:
        raise typer.Exit(code)
