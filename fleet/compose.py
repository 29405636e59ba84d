"""The composition root: the one module of fleet that puts the runtime's parts together, imported lazily inside.

What comes back are plain records, so that the commands know nothing of the runtime.
"""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duckfleet.fleet.benches import BENCHES, BenchRow, Rows, checked, options_for
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.plan import ShardPlan

if TYPE_CHECKING:
    from duckfleet.fleet.context import FleetContext
    from duckfleet.fleet.musters import Standing
    from duckfleet.fleet.serving import ServeRequest
    from duckfleet.inventory.roster import Roster
    from duckfleet.runtime.fabric import FailoverEvent

Progress = Callable[[str, int, int | None], None]
"""(what is being done, done so far, in all or None)."""


DEFAULT_CTX = 4096


def quiet(_what: str, _done: int, _total: int | None) -> None:
    """A `Progress` that shows nothing."""


# -- models ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelOnDisk:
    """A model that was pulled."""

    name: str
    source: str
    path: Path
    num_bytes: int
    pulled_at_s: float


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A published model of the catalogue, whether it was pulled or not."""

    name: str
    family: str
    source: str
    pulled: bool


def pull_model(models_dir: Path, model: str, name: str | None, progress: Progress = quiet) -> ModelOnDisk:
    """Fetch a model by catalogue name or source; one that is here is not fetched again."""
    from duckfleet.runtime.model import ModelStore

    return _on_disk(ModelStore(models_dir).pull(model, name, progress))


def list_models(models_dir: Path) -> list[ModelOnDisk]:
    from duckfleet.runtime.model import ModelStore

    return [_on_disk(stored) for stored in ModelStore(models_dir).list()]


def damaged_models(models_dir: Path) -> list[str]:
    """What is wrong with each model that `list_models` had to leave out."""
    from duckfleet.runtime.model import ModelStore

    return list(ModelStore(models_dir).damaged())


def remove_model(models_dir: Path, model: str) -> ModelOnDisk:
    from duckfleet.runtime.model import ModelStore

    return _on_disk(ModelStore(models_dir).remove(model))


def convert_model(models_dir: Path, model: str, name: str | None, progress: Progress = quiet) -> ModelOnDisk:
    """Make the FP8 twin of a model that is here, under `name` (its own with "-fp8" where None)."""
    from duckfleet.runtime.model import ModelStore

    return _on_disk(ModelStore(models_dir).convert(model, name, progress))


def find_model(models_dir: Path, model: str) -> ModelOnDisk:
    """A model that is here. Raises `OperatorError` that says how to get it."""
    return _on_disk(_stored(models_dir, model))


def _stored(models_dir: Path, model: str) -> Any:
    """A model that is here, by its name or by the source that it was pulled from."""
    from duckfleet.runtime.model import ModelStore, UnknownModel

    store = ModelStore(models_dir)
    try:
        return store.find(model)
    except UnknownModel:
        sources = (model, str(Path(model).expanduser().resolve()))
        same = [stored for stored in store.list() if stored.source in sources]
        if len(same) != 1:
            raise
        return same[0]


def _on_disk(stored: Any) -> ModelOnDisk:
    return ModelOnDisk(stored.name, stored.source, stored.path, stored.num_bytes, stored.pulled_at_s)


def known_models(pulled: Iterable[str] = ()) -> list[KnownModel]:
    """The catalogue of published models."""
    from duckfleet.runtime.model import catalogue

    here = set(pulled)
    return [
        KnownModel(entry.name, entry.model_type, entry.source, entry.name in here) for entry in catalogue().values()
    ]


# -- plans -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PreparedPlan:
    """A plan whose chunks lie in the chunk store."""

    plan: ShardPlan

    def as_generation(self, generation: int) -> str:
        """Its JSON text with a generation."""
        from duckfleet.runtime.planner import plan_to_json

        return plan_to_json(replace(self.plan, generation=generation))


def plan_of_generation(plan_text: str, generation: int) -> str:
    """The same plan with another generation."""
    return PreparedPlan(read_plan(plan_text)).as_generation(generation)


def read_plan(text: str, where: str = "plan") -> ShardPlan:
    from duckfleet.runtime.planner import plan_from_json

    return plan_from_json(text, where)


def prepare(
    models_dir: Path,
    chunks_dir: Path,
    model: str,
    *,
    tp: int,
    format: str | None = None,
    parts: int = 1,
    shares: Sequence[float] | None = None,
    room_bytes: Mapping[str, int] | None = None,
    replicas: float = 0.0,
    progress: Progress = quiet,
) -> PreparedPlan:
    """Cut a model for `tp` ducks into the chunk store; what is there already is not made again.

    `room_bytes`, by address, is what the holders (ranks, then spares) have for chunks: then the plan has as much of a
    second copy as fits, and at most `replicas` of it. Raises `OperatorError` for a model that is not here or cannot be
    cut so, and, before anything is written, naming a duck that has no room for its own slice.
    """
    from duckfleet.runtime.model import Checkpoint
    from duckfleet.runtime.model import prepare as prepare_checkpoint
    from duckfleet.runtime.planner import cut, replicate, shortfall

    stored = _stored(models_dir, model)
    checkpoint = Checkpoint.open(stored.path, stored.folder / "derived")
    try:
        if room_bytes is not None:
            bare = cut(
                checkpoint.config.ffn_shape(stored.name), tp, parts, shares, format=format or checkpoint.native_format
            )
            blocked = shortfall(bare, room_bytes)
            if blocked:
                raise OperatorError(f"{stored.name} in {bare.format} does not fit: {blocked}")
        plan = prepare_checkpoint(
            checkpoint, stored.name, chunks_dir, tp=tp, format=format, parts=parts, weights=shares, progress=progress
        )
        if room_bytes is not None:
            plan = replicate(plan, list(room_bytes.values()), fraction=replicas)
    except ValueError as error:
        raise OperatorError(f"{stored.name} cannot be cut so: {error}") from error
    return PreparedPlan(plan)


@dataclass(frozen=True, slots=True)
class PlannedDuck:
    """One duck of a plan. `covered`: how much of its slice others hold as well, 0 to 1."""

    duck: str
    ram_bytes: int
    slice_bytes: int
    replica_bytes: int
    headroom_bytes: int
    covered: float


@dataclass(frozen=True, slots=True)
class PlannedBytes:
    """Where a published model's bytes would lie; `blocked` says what stands in the way."""

    model: str
    format: str
    parts: int
    ducks: tuple[PlannedDuck, ...]
    lines: tuple[tuple[str, int], ...]
    blocked: tuple[str, ...]


def plan_budget(
    models_dir: Path,
    model: str,
    ram_bytes: Mapping[str, int],
    *,
    ctx: int | None,
    gpu_gib: float,
    format: str | None,
    parts: int,
    replicas: float,
) -> PlannedBytes:
    """Count a model of the catalogue for ducks with so much memory, by address. Raises `OperatorError`.

    Without `format` it is that of the checkpoint, if it is here, and else the catalogue's: what `place` would take.
    """
    from duckfleet.runtime.model import Checkpoint, UnknownModel
    from duckfleet.runtime.model.catalogue import entry
    from duckfleet.runtime.model.fleet_budget import DuckRam, fleet_budget

    known = entry(model)
    if format is None:
        try:
            stored = _stored(models_dir, known.name)
            format = Checkpoint.open(stored.path, stored.folder / "derived").native_format
        except UnknownModel:
            format = known.format
    try:
        found = fleet_budget(
            known,
            [DuckRam(name, num_bytes) for name, num_bytes in ram_bytes.items()],
            format=format,
            ctx=ctx,
            gpu_bytes=int(gpu_gib * 2**30) or None,
            parts=parts,
            replicas=replicas,
        )
    except ValueError as error:
        raise OperatorError(f"{model} cannot be planned so: {error}") from error
    lines = (
        ("slices on all ducks", sum(found.slice_bytes)),
        ("replicas on all ducks", sum(found.replica_bytes)),
        *((f"host: {what}", num_bytes) for what, num_bytes in found.host.lines()),
        ("host: embedding, read from the file by rows", found.host.embedding_bytes),
        ("host: KV cache per 1,000 tokens", 1000 * found.host.cache_bytes_per_token),
        ("weights in all", found.counted_bytes),
        ("the published checkpoint", found.published_bytes),
    )
    ducks = tuple(
        PlannedDuck(
            duck=duck.name,
            ram_bytes=duck.ram_bytes,
            slice_bytes=found.slice_bytes[rank],
            replica_bytes=found.replica_bytes[rank],
            headroom_bytes=found.headroom_bytes[rank],
            covered=found.covered[rank],
        )
        for rank, duck in enumerate(found.ducks)
    )
    return PlannedBytes(found.model, found.format, parts, ducks, lines, found.blocked)


# -- serving -----------------------------------------------------------------------------------------------


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
    stored = _stored(fleet.models_dir, standing.model)
    checkpoint = Checkpoint.open(stored.path, stored.folder / "derived")
    ctx = request.ctx or min(DEFAULT_CTX, checkpoint.config.max_positions)
    _require_host_memory(checkpoint, ctx, request.host_format, say)
    say(f"agreeing with {standing.roster.tp} ducks on {plan.model} in {plan.format}")
    fabric = UdpFabric(
        standing.roster,
        plan,
        fleet.keys,
        deadline_s=request.deadline_s,
        wire_dtype=request.wire_dtype,
        auth=not fleet.no_auth,
        spin_us=_spin_us(standing.roster),
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


@dataclass(frozen=True, slots=True)
class BareDecoder:
    """A standing model without a server, one sequence at a time from a fixed prompt."""

    decode: Callable[[int], dict[str, float]]
    """Decodes so many tokens greedily, one by one; the fabric's share in microseconds (prepare, send, wait, fetch) and
    the whole ("all")."""
    prefill: Callable[[int], float]
    """Runs a prompt of so many tokens; microseconds until its logits."""


@contextmanager
def bare_decoder(
    fleet: FleetContext, standing: Standing, *, host_format: str | None = None, num_threads: int = 1
) -> Iterator[BareDecoder]:
    """The standing model, its host side in `host_format` (None: as stored) on `num_threads` threads."""
    from duckfleet.runtime.fabric import UdpFabric
    from duckfleet.runtime.model import Checkpoint, load_decoder

    plan = read_plan(standing.plan_text, str(standing.folder))
    stored = _stored(fleet.models_dir, standing.model)
    checkpoint = Checkpoint.open(stored.path, stored.folder / "derived")
    fabric = UdpFabric(
        standing.roster, plan, fleet.keys, deadline_s=10.0, auth=not fleet.no_auth, spin_us=_spin_us(standing.roster)
    )
    try:
        decoder = load_decoder(checkpoint, fabric, host_format=host_format, num_threads=num_threads)

        def decode(num_tokens: int) -> dict[str, float]:
            cache = decoder.new_cache(num_tokens + 16)
            token = int(decoder.forward(list(range(1, 9)), cache)[-1].numpy().argmax())
            spent = dict.fromkeys(("prepare", "send", "wait", "fetch"), 0.0)
            began = time.perf_counter()
            for _ in range(num_tokens):
                token = int(decoder.forward([token], cache)[-1].numpy().argmax())
                for part in spent:
                    spent[part] += getattr(decoder.timing, f"{part}_us")
            return {**spent, "all": 1e6 * (time.perf_counter() - began)}

        def prefill(num_tokens: int) -> float:
            cache = decoder.new_cache(num_tokens)
            prompt = [1 + i % (decoder.vocab_size - 1) for i in range(num_tokens)]
            began = time.perf_counter()
            decoder.forward(prompt, cache)
            return 1e6 * (time.perf_counter() - began)

        yield BareDecoder(decode, prefill)
    finally:
        fabric.close()


def write_q8_0(models_dir: Path, model: str, target: Path) -> None:
    """A pulled GGUF model with its matrices as Q8_0, for peers that read nothing of ours."""
    from duckfleet.runtime.model.requantise import write_q8_0 as write

    target.parent.mkdir(parents=True, exist_ok=True)
    write(find_model(models_dir, model).path, target)


def _spin_us(roster: Roster) -> int:
    """Spinning answers sooner, but in a lab it would take the cores from the ducks."""
    return 0 if any(domain.host_address.startswith("127.") for domain in roster.domains) else 50


def chat(
    url: str,
    *,
    message: str | None,
    system: str | None = None,
    api_key: str | None,
    max_tokens: int | None,
    temperature: float | None,
    think: bool = False,
) -> int:
    """Talk to a server in the terminal; returns the exit code."""
    from duckfleet.runtime.chat import run_chat

    return run_chat(
        url,
        api_key=api_key,
        message=message,
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
        think=think,
    )


@dataclass(frozen=True, slots=True)
class Quality:
    """What one number format does to one text. `unrounded` is the yardstick."""

    text: str
    format: str
    num_tokens: int
    perplexity: float
    kl_mean: float  # nats a token, from the unrounded model
    kl_max: float
    top1_agreement: float


def evaluate(
    models_dir: Path,
    chunks_dir: Path,
    model: str,
    formats: Sequence[str],
    *,
    texts: Mapping[str, str] | None = None,
    num_threads: int = 1,
    progress: Progress = quiet,
) -> list[Quality]:
    """Rows of the unrounded model and of every format, on the texts that ship with us unless others are given."""
    from duckfleet.runtime.model import Checkpoint, load_tokenizer
    from duckfleet.runtime.model.evaluate import evaluate as evaluate_formats

    stored = _stored(models_dir, model)
    checkpoint = Checkpoint.open(stored.path, stored.folder / "derived")
    found = evaluate_formats(
        checkpoint,
        load_tokenizer(checkpoint),
        stored.name,
        chunks_dir,
        formats,
        on=texts,
        threads=num_threads,
        progress=progress,
    )
    return [
        Quality(row.text, row.format, row.num_tokens, row.perplexity, row.kl_mean, row.kl_max, row.top1_agreement)
        for row in found
    ]


def random_chunks(folder: Path, tp: int, num_bytes: int) -> ShardPlan:
    """A plan of random weights whose chunks are written to `folder`."""
    from duckfleet.runtime.bench.random_chunks import write_random_chunks

    return write_random_chunks(folder, tp, num_bytes)


# -- benchmarks --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bench:
    """A benchmark of this build."""

    name: str
    rows: Rows
    about: str


def available_benches() -> list[Bench]:
    """The benchmarks of which this build has the module."""
    return [_load_bench(name) for name, module in BENCHES.items() if _has_module(module)]


def run_bench(name: str, arguments: Sequence[str]) -> Iterator[BenchRow]:
    """Rows as they are measured. Raises `OperatorError` for a name or an option that there is not."""
    if name not in BENCHES or not _has_module(BENCHES[name]):
        there = ", ".join(bench.name for bench in available_benches())
        raise OperatorError(f"no benchmark {name!r}; there are {there}")
    bench = _load_bench(name)
    options = options_for(bench.rows, arguments)
    return (checked(row) for row in bench.rows(**options))


def _load_bench(name: str) -> Bench:
    module = importlib.import_module(BENCHES[name])
    about = (module.__doc__ or "").strip().splitlines()
    return Bench(name, module.rows, about[0] if about else "")


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
