"""The fabric over a network: sessions and errors here, datagrams in the native core."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial

from duckfleet.inventory.errors import InternalError, OperatorError
from duckfleet.inventory.plan import ShardPlan
from duckfleet.inventory.roster import Roster
from duckfleet.runtime.errors import DuckLost, FabricClosed
from duckfleet.runtime.wire import MAX_TOKENS, FleetKeys, TagAlgorithm, WireDtype

from . import _fabric
from .admission import Admission, ChunkSource
from .failover import Failover, FailoverEvent, FailoverPolicy
from .interface import F32, U32, ForwardTiming, Ticket
from .layout import DomainLayout, Duties, duties, lay_out
from .path_mtu import with_jumbo_frames
from .report import MissingVector, duck_lost, traffic
from .session import (
    FleetControl,
    SessionSecrets,
    SessionTerms,
    agree,
    choose_tag_algorithm,
    configure,
    require_chunks,
)
from .takeover import PlanParts, Shares

DEFAULT_MAX_REQUEST_BYTES = 1 << 20
_CLOSED, _LOST = 2, 1  # native Outcome


class UdpFabric:
    """FFN layers on the ducks of a roster. Implements `interface.Fabric`.

    Construction goes through the whole session set-up: identities, chunks, assignment, keys. Authentication is on
    unless `auth=False`. `deadline_s` bounds the time from sending a request to its last reply; `spin_us` is how
    long to poll busily before blocking (0 where ducks share the host's cores). `wire_dtype` f16 and bf16 halve what
    is broadcast and round activations.

    A duck that falls silent is replaced while the forward waits (failover.py): by holders of its parts, else by ducks
    that have room for what `chunk_source` gives; `failover` says when. `on_failover` is told of each such event, and
    `on_lost` of each forward that failed because a duck did not answer; both must be quick. With `absent_ok` a duck
    that does not answer at the start is replaced in the same way.

    Raises `OperatorError` (roster and plan do not fit, an address that cannot be bound), `DuckLost` (no answer),
    `ChunkMissing` (run `duckctl place`), subclasses of `IdentityMismatch`.
    """

    def __init__(
        self,
        roster: Roster,
        plan: ShardPlan,
        keys: FleetKeys | None,
        *,
        deadline_s: float,
        wire_dtype: str = "f32",
        auth: bool = True,
        spin_us: int = 0,
        transport: str = "udp",
        control_timeout_s: float = 5.0,
        max_tokens: int = MAX_TOKENS,
        max_request_bytes: int = DEFAULT_MAX_REQUEST_BYTES,
        min_probe_us: int = 3_000,
        max_probe_us: int = 100_000,
        gap_us: int = 1_000,
        on_lost: Callable[[DuckLost], None] | None = None,
        failover: FailoverPolicy = FailoverPolicy(),  # noqa: B008 - frozen
        chunk_source: ChunkSource | None = None,
        on_failover: Callable[[FailoverEvent], None] | None = None,
        absent_ok: bool = False,
    ) -> None:
        if auth and keys is None:
            raise OperatorError("there are no fleet keys: run `duckctl init`, or say auth=False (`--no-auth`)")
        if transport not in _fabric.transports():
            raise OperatorError(f"no transport is called {transport!r}; this build has: {_fabric.transports()}")
        if wire_dtype.upper() not in WireDtype.__members__:
            raise OperatorError(f"activations cannot travel as {wire_dtype!r}; choose f32, f16 or bf16")
        self._plan = plan
        self._layouts = lay_out(roster, plan)
        self._parts = PlanParts.of(plan)
        everybody = (*roster.entries, *roster.spares)
        self._by_rank = {entry.rank: entry for entry in everybody}
        self._domain_of = {duck.rank: i for i, layout in enumerate(self._layouts) for duck in layout.ducks}
        self._on_lost = on_lost
        self._forwards = 0
        self._timing_us = [0.0, 0.0, 0.0, 0.0]

        control = FleetControl(roster.entries, keys, control_timeout_s, absent_ok=absent_ok)
        try:
            identities = control.each(lambda _, client: client.identity())
            agree(plan, control.ducks, identities, wire_dtype)
            host = [a for a in TagAlgorithm if _fabric.available_tag_algorithms() >> a & 1]
            self._tag_algorithm = choose_tag_algorithm(control.ducks, identities, host, auth)
            require_chunks(control, plan)
            self._layouts = tuple(with_jumbo_frames(layout) for layout in self._layouts)
            secret = SessionSecrets.draw(self._layouts)
            session = _fabric.SessionConfig(
                session=secret.session,
                generation=plan.generation,
                hidden=plan.hidden,
                max_tokens=max_tokens,
                max_request_bytes=max_request_bytes,
                wire_dtype=WireDtype[wire_dtype.upper()],
                tag_algorithm=self._tag_algorithm,
                min_probe_us=min_probe_us,
                max_probe_us=max_probe_us,
                gap_us=gap_us,
            )
            whole = Shares(frozenset(range(plan.tp)), {}, ())
            self._native = _open(
                session,
                self._layouts,
                duties(self._layouts, self._parts, whole),
                secret,
                transport,
                spin_us,
                round(deadline_s * 1e6),
                failover,
            )
            terms = SessionTerms(plan, self._layouts, secret, self._native.ports(), self._tag_algorithm, wire_dtype)
            try:
                configure(control, terms)
            except BaseException:
                self._native.close()
                raise
        finally:
            control.close()
        self._session = secret.session
        self._transport = transport
        self._lost_ducks: tuple[str, ...] = ()
        self._failover = Failover(
            self._parts,
            everybody,
            {duck.rank: layout.domain.host_address for layout in self._layouts for duck in layout.ducks},
            Admission(plan, self._parts, terms, keys, chunk_source, control_timeout_s),
            failover,
            # Of the native core, not of this object: a fabric that is let go frees its buffers at once.
            apply=partial(_apply, self._native, self._layouts, self._parts),
            rekey=partial(_rekey, self._native, terms),
            on_event=on_failover,
            first_key_id=1 + len(self._layouts) + len(everybody),
        )
        try:
            self._failover.admit_spares()
            self._failover.begin_without(control.absent)
        except BaseException:
            self.close()
            raise
        # The native core must not hold the failover, which holds the native core.
        handler = weakref.WeakMethod(self._failover.on_silence)

        def on_silence(waited_us: int, missing: list[_fabric.Missing]) -> bool:
            ask = handler()
            return ask is not None and ask(waited_us, missing)

        self._native.on_silence(on_silence)

    @property
    def tag_algorithm(self) -> TagAlgorithm:
        """How this session's datagrams are authenticated."""
        return self._tag_algorithm

    @property
    def max_tokens(self) -> int:
        """Tokens of one request at most; longer batches are cut."""
        return self._native.max_tokens()

    def submit(
        self, layer: int, x: F32, experts: U32 | None = None, weights: F32 | None = None, lane: int = 0
    ) -> Ticket:
        """See `interface.Fabric`. A ticket that is dropped without wait() gives its forward up.

        Raises `FabricClosed`; `ValueError` for shapes, layers or routes that cannot be; `InternalError` when the lane
        has a forward already.
        """
        try:
            ticket = self._native.submit(layer, x, experts, weights, lane)
        except RuntimeError as error:
            raise InternalError(str(error)) from error
        if ticket is None:
            raise FabricClosed("the fabric is closed")
        return ticket

    def wait(self, ticket: Ticket, out: F32) -> ForwardTiming:
        """See `interface.Fabric`."""
        if not isinstance(ticket, _fabric.Ticket):
            raise InternalError("this ticket is another fabric's")
        outcome, timing, loss = self._native.wait(ticket, out)
        if outcome == 0:
            self._lost_ducks = ()
            self._forwards += 1
            for i, us in enumerate(timing):
                self._timing_us[i] += us
            return ForwardTiming(*timing)
        if outcome == _LOST and loss is not None:
            lost = self._lost(ticket.layer, *loss)
            self._lost_ducks = lost.ducks
            if self._on_lost is not None:
                self._on_lost(lost)
            raise lost
        raise FabricClosed("the fabric was closed")

    def _lost(self, layer: int, waited_us: int, missing: Sequence[_fabric.Missing]) -> DuckLost:
        send_errnos = [domain["last_send_errno"] for domain in self._native.stats()]
        return duck_lost(
            layer,
            waited_us,
            [MissingVector(*vector) for vector in missing],
            self._by_rank,
            {rank: send_errnos[domain] for rank, domain in self._domain_of.items()},
            self._failover.why_not(),
        )

    def stats(self) -> dict[str, object]:
        """See `interface.Fabric`: means of `ForwardTiming`, latencies and retransmissions by duck, drops by kind,
        and what failover did."""
        missing = self._failover.missing_ducks()
        counted = traffic(self._layouts, self._native.stats())
        for duck in counted["ducks"]:
            duck["missing"] = int(duck["duck"] in missing)
        return {
            "transport": self._transport,
            "tag_algorithm": self._tag_algorithm.name.lower(),
            "session": self._session,
            "generation": self._plan.generation,
            "forwards": self._forwards,
            "failover": {**self._failover.stats(), "last_pause_ms": self._native.last_pause_us() / 1e3},
            "missing_ducks": missing,
            "lost_ducks": list(self._lost_ducks),  # of the last forward, when it was given up
            "mean_us": {
                name: us / max(1, self._forwards)
                for name, us in zip(("prepare", "send", "wait", "fetch"), self._timing_us, strict=True)
            },
            **counted,
        }

    def close(self) -> None:
        """Idempotent; whoever waits gets `FabricClosed`."""
        self._failover.close()
        self._native.close()


def _apply(native: _fabric.Fabric, layouts: Sequence[DomainLayout], parts: PlanParts, shares: Shares) -> None:
    native.set_duties([_native_duties(some) for some in duties(layouts, parts, shares)])


def _rekey(native: _fabric.Fabric, terms: SessionTerms, rank: int, key_id: int, key: bytes) -> None:
    domain, duck = terms.place(rank)
    native.rekey(domain, duck, key_id, key)


def _native_duties(some: Duties) -> _fabric.DomainDuties:
    return _fabric.DomainDuties(
        vectors=[_fabric.VectorSpec(duck=v.duck, slice=v.slice, part=v.part) for v in some.vectors],
        vectors_of_layer=some.vectors_of_layer,
    )


def _open(
    session: _fabric.SessionConfig,
    layouts: Sequence[DomainLayout],
    duties_of_domain: Sequence[Duties],
    secret: SessionSecrets,
    transport: str,
    spin_us: int,
    deadline_us: int,
    failover: FailoverPolicy,
) -> _fabric.Fabric:
    domains = []
    for layout, some, keys in zip(layouts, duties_of_domain, secret.domains, strict=True):
        domains.append(
            _fabric.DomainConfig(
                name=layout.domain.name,
                host_address=layout.domain.host_address,
                host_port=0,
                broadcast=layout.domain.broadcast,
                data_port=layout.data_port,
                fragment_bytes=layout.fragment_bytes,
                key_id=keys.broadcast_id,
                key=keys.broadcast,
                ducks=[
                    _fabric.DuckConfig(
                        rank=duck.rank, address=duck.address, port=duck.data_port, key_id=key_id, key=key
                    )
                    for duck, key_id, key in zip(layout.ducks, keys.duck_ids, keys.ducks, strict=True)
                ],
                vectors=[_fabric.VectorSpec(duck=v.duck, slice=v.slice, part=v.part) for v in some.vectors],
                vectors_of_layer=some.vectors_of_layer,
            )
        )
    try:
        return _fabric.Fabric(
            session=session,
            domains=domains,
            transport=transport,
            spin_us=spin_us,
            deadline_us=deadline_us,
            silence_floor_us=round(failover.silence_floor_s * 1e6),
            silence_medians=failover.silence_medians,
            silence_cold_us=round(failover.silence_cold_s * 1e6),
        )
    except _fabric.LinkError as error:
        raise OperatorError(str(error)) from error
