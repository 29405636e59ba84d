"""A standing model behind its HTTP server, until a signal."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from duckfleet.fleet.compose.decoding import spin_us_for
from duckfleet.fleet.compose.models import stored_model
from duckfleet.fleet.compose.plans import read_plan

if TYPE_CHECKING:
    from duckfleet.fleet.context import FleetContext
    from duckfleet.fleet.musters import Standing
    from duckfleet.fleet.serving import ServeRequest
    from duckfleet.runtime.fabric import FailoverEvent

_DEFAULT_CTX = 4096


def import_server() -> None:
    """Import what `run_server` needs, for measurements that leave that out."""
    for name in ("engine", "fabric", "model", "server", "decoder"):
        importlib.import_module(f"duckfleet.runtime.{name}")
    from transformers import AutoTokenizer  # noqa: F401


def run_server(
    fleet: FleetContext,
    standing: Standing,
    request: ServeRequest,
    *,
    say: Callable[[str], None],
    on_ready: Callable[[str], None],
    on_lost: Callable[[Sequence[str], str], None],
    on_failover: Callable[[str, Sequence[str], Mapping[str, object]], None],
) -> None:
    """Load the host's share of the standing model, agree with its ducks, and answer until a signal.

    `on_ready` is called with the URL once requests are accepted, `on_lost` with the names of ducks that did not answer
    a forward and the error, `on_failover` with what was done about ducks that fell silent. Raises `DuckLost`,
    subclasses of `IdentityMismatch`, `OperatorError`; requests under way when the signal comes are finished or said to
    be cut.
    """
    from duckfleet.runtime.engine import Engine
    from duckfleet.runtime.fabric import FailoverPolicy, UdpFabric
    from duckfleet.runtime.model import Checkpoint, load_decoder, load_dialect, load_tokenizer
    from duckfleet.runtime.model.chunk_store import ChunkStore
    from duckfleet.runtime.server import (
        HttpServer,
        SamplingDefaults,
        ServerSettings,
        configure_logging,
        create_app,
        require_free,
    )

    configure_logging(as_json=not sys.stderr.isatty())
    with fleet.at_home():
        require_free(request.host, request.port)  # said before minutes of loading
    plan = read_plan(standing.plan_text, str(standing.folder))
    stored = stored_model(fleet.models_dir, standing.model)
    checkpoint = Checkpoint.open(stored.path, stored.folder / "derived")
    ctx = request.ctx or min(_DEFAULT_CTX, checkpoint.config.max_positions)
    _require_host_memory(checkpoint, ctx, request.host_format, say)
    say(f"agreeing with {standing.roster.tp} ducks on {plan.model} in {plan.format}")
    fabric = UdpFabric(
        standing.roster,
        plan,
        fleet.keys,
        deadline_s=request.deadline_s,
        wire_dtype=request.wire_dtype,
        auth=not fleet.no_auth,
        spin_us=spin_us_for(standing.roster),
        on_lost=lambda error: on_lost(error.ducks, str(error)),
        failover=FailoverPolicy(request.silence_floor_s, request.silence_medians),
        chunk_source=ChunkStore(fleet.chunks_dir).read,
        absent_ok=request.min_tp is not None,
        on_failover=lambda event: on_failover(event.kind, event.ducks, _evidence_of(event)),
    )
    try:
        say("loading what stays on this host")
        decoder = load_decoder(checkpoint, fabric, host_format=request.host_format, num_threads=request.num_threads)
        tokenizer = load_tokenizer(checkpoint)
        sampling = SamplingDefaults.from_generation_config(checkpoint.generation_config)
        dialect = load_dialect(checkpoint, tokenizer)
        shown = dialect.markers if dialect else ()
        with Engine(decoder, tokenizer, ctx=ctx, max_queue=request.max_queue, shown_special=shown) as engine:
            app = create_app(
                engine,
                standing.model,
                api_keys=request.api_keys,
                fabric_stats=fabric.stats,
                aliases=_aliases(standing.model),
                settings=ServerSettings(sampling=sampling),
                dialect=dialect,
            )
            with fleet.at_home():
                server = HttpServer(app, request.host, request.port)
            on_ready(server.url)
            say(f"serving {standing.model} at {server.url}")
            report = server.run()
            _ignore_interrupts()
        say(f"stopped: {report}")
    finally:
        fabric.close()


def _ignore_interrupts() -> None:
    """One more ctrl-C while threads and sockets are closed would tear the process down in the middle of it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _evidence_of(event: FailoverEvent) -> dict[str, object]:
    found: dict[str, object] = {"failover_generation": event.generation}
    found["what" if event.kind == "rejoined" else "error"] = event.text
    if event.kind == "taken_over":
        found |= {"silent_ms": round(event.silent_ms, 1), "took_ms": round(event.took_ms, 1)}
    if event.moved_bytes:
        found["moved_bytes"] = event.moved_bytes
    return found


def _aliases(model: str) -> tuple[str, ...]:
    """Other names of a model of the catalogue, by which `model pull` and `place` know it too."""
    from duckfleet.runtime.model.catalogue import find_entry

    known = find_entry(model)
    return tuple(name for name in (known.name, *known.aliases) if name != model) if known else ()


def _require_host_memory(checkpoint: Any, ctx: int, host_format: str | None, say: Callable[[str], None]) -> None:
    """Say what will be loaded here. Raises `OperatorError` where it does not fit, naming a context that would."""
    import psutil

    from duckfleet.runtime.model.budget import host_budget

    budget = host_budget(checkpoint.config, checkpoint.tensors, ctx, host_format)
    for what, num_bytes in budget.lines():
        say(f"  {num_bytes / 2**20:10.1f} MiB  {what}")
    budget.require(psutil.virtual_memory().available)
