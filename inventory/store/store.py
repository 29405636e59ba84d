"""Read and write the store. Each call is one transaction; a reader never waits for a writer."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from duckfleet.inventory.site import Duck
from duckfleet.inventory.store import schema
from duckfleet.inventory.store.connect import StoreError, make_engine, read_transaction, write_transaction
from duckfleet.inventory.store.migrate import migrate
from duckfleet.inventory.store.records import (
    DuckRow,
    Event,
    Evidence,
    Hold,
    Measurement,
    Placement,
    ProbeRun,
    Transition,
)

__all__ = ["Store", "StoreError"]

FIRST_STATE = "unknown"
Decide = Callable[[str, str], str]
"""(state, event) -> state; raises for a transition that is not listed. The lifecycle's table."""


def default_actor() -> str:
    """Who wrote an event, when nobody says: user and process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, in a container
        user = str(os.getuid())
    return f"{user}/{os.getpid()}"


class Store:
    """A store by URL: `sqlite:///PATH` or `postgresql://…`. Opening creates or upgrades the schema.

    Safe to use from threads, and by several processes at once. Every method raises `StoreError` when the database
    does not do its part.
    """

    def __init__(self, url: str, *, actor: str = "", clock: Callable[[], float] = time.time) -> None:
        self.url = url
        self.actor = actor or default_actor()
        self._clock = clock
        self._engine = make_engine(url)
        migrate(self._engine, url)

    def close(self) -> None:
        self._engine.dispose()

    def _write(self) -> Any:
        return write_transaction(self._engine, self.url)

    def _read(self) -> Any:
        return read_transaction(self._engine, self.url)

    # -- ducks and their states ------------------------------------------------------------------------

    def know(self, ducks: Iterable[Duck]) -> None:
        """Enter ducks of the site file; a known one keeps its state and gets its new name and address."""
        ducks = list(ducks)
        with self._read() as connection:
            rows = {row.mac: row for row in connection.execute(sa.select(schema.ducks))}
        fresh = [
            duck
            for duck in ducks
            if duck.mac not in rows
            or (rows[duck.mac].name, rows[duck.mac].address, rows[duck.mac].domain)
            != (duck.name, duck.address, duck.domain)
        ]
        if not fresh:
            return
        with self._write() as connection:
            for duck in fresh:
                self._know(connection, duck)

    def _know(self, connection: Connection, duck: Duck) -> None:
        names = {"name": duck.name, "address": duck.address, "domain": duck.domain}
        changed = connection.execute(sa.update(schema.ducks).where(schema.ducks.c.mac == duck.mac).values(**names))
        if changed.rowcount:
            return
        now = self._clock()
        row = {"mac": duck.mac, "state": FIRST_STATE, "since_s": now, "confirmed_s": now, "evidence": {}, **names}
        if connection.dialect.name == "postgresql":
            from sqlalchemy.dialects.postgresql import insert

            connection.execute(insert(schema.ducks).values(row).on_conflict_do_nothing())
        else:
            connection.execute(sa.insert(schema.ducks).values(row))

    def ducks(self) -> dict[str, DuckRow]:
        """Every duck ever known, by MAC."""
        with self._read() as connection:
            rows = connection.execute(sa.select(schema.ducks))
            return {row.mac: DuckRow(**row._mapping) for row in rows}

    def transition(
        self, duck: Duck, event: str, evidence: Evidence, decide: Decide, *, actor: str = "", restart: bool = False
    ) -> Transition:
        """Take `event` for this duck: read its state, ask `decide`, write the new state and the log line, as one.

        A state that stays the same keeps the time it began, unless `restart`. Whatever `decide` raises for an
        unlisted transition passes through and nothing is written.
        """
        with self._write() as connection:
            state = self._lock_state(connection, duck)
            new_state = decide(state, event)
            now = self._clock()
            values: dict[str, Any] = {"evidence": dict(evidence), "state": new_state}
            if restart or new_state != state:
                values["since_s"] = values["confirmed_s"] = now
            connection.execute(sa.update(schema.ducks).where(schema.ducks.c.mac == duck.mac).values(**values))
            event_id = self._log(connection, now, duck, event, (state, new_state), evidence, actor)
        return Transition(event_id, state, new_state)

    def _lock_state(self, connection: Connection, duck: Duck) -> str:
        query = sa.select(schema.ducks.c.state).where(schema.ducks.c.mac == duck.mac).with_for_update()
        state = connection.execute(query).scalar()
        if state is None:
            self._know(connection, duck)
            state = connection.execute(query).scalar()
        return str(state)

    def renew(self, macs: Sequence[str], state: str) -> None:
        """Say that these ducks are still in `state`, so that its time-out starts anew; no log line."""
        with self._write() as connection:
            mine = schema.ducks.c.mac.in_(list(macs)) & (schema.ducks.c.state == state)
            connection.execute(sa.update(schema.ducks).where(mine).values(confirmed_s=self._clock()))

    # -- the log ---------------------------------------------------------------------------------------

    def log(self, kind: str, evidence: Evidence, duck: Duck | None = None, *, actor: str = "") -> int:
        """Write a line that changes no state; without a duck it is about the fleet. Returns its id."""
        with self._write() as connection:
            return self._log(connection, self._clock(), duck, kind, ("", ""), evidence, actor)

    def _log(
        self,
        connection: Connection,
        now: float,
        duck: Duck | None,
        kind: str,
        states: tuple[str, str],
        evidence: Evidence,
        actor: str,
    ) -> int:
        result = connection.execute(
            sa.insert(schema.events).values(
                at_s=now,
                mac=duck.mac if duck else "",
                duck=duck.name if duck else "",
                kind=kind,
                from_state=states[0],
                to_state=states[1],
                evidence=dict(evidence),
                actor=actor or self.actor,
            )
        )
        return _new_id(result)

    def events(self, macs: Sequence[str] = (), *, limit: int | None = None, after_id: int = 0) -> list[Event]:
        """The newest `limit` events after `after_id`, oldest first; of these ducks, or of all and the fleet."""
        query = sa.select(schema.events).where(schema.events.c.id > after_id).order_by(schema.events.c.id.desc())
        if macs:
            query = query.where(schema.events.c.mac.in_(list(macs)))
        if limit is not None:
            query = query.limit(limit)
        with self._read() as connection:
            return [Event(**row._mapping) for row in connection.execute(query)][::-1]

    # -- probes and measurements -----------------------------------------------------------------------

    def add_probe_run(
        self,
        mac: str,
        started_at_s: float,
        outcome: str,
        report: Mapping[str, Any],
        *,
        error: str = "",
        measured: Mapping[str, tuple[float, str]] | None = None,
    ) -> int:
        """Keep a probe run and the numbers it measured (name -> value, unit). Returns the run's id."""
        now = self._clock()
        with self._write() as connection:
            result = connection.execute(
                sa.insert(schema.probe_runs).values(
                    mac=mac,
                    started_at_s=started_at_s,
                    finished_at_s=now,
                    outcome=outcome,
                    report=dict(report),
                    error=error,
                )
            )
            run_id = _new_id(result)
            rows = [
                {"mac": mac, "at_s": now, "name": name, "value": value, "unit": unit, "probe_run_id": run_id}
                for name, (value, unit) in (measured or {}).items()
            ]
            if rows:
                connection.execute(sa.insert(schema.measurements), rows)
        return run_id

    def latest_probes(self, *, outcome: str | None = None) -> dict[str, ProbeRun]:
        """The newest probe run of each duck, by MAC; with `outcome`, the newest of that outcome."""
        newest = sa.select(sa.func.max(schema.probe_runs.c.id)).group_by(schema.probe_runs.c.mac)
        if outcome is not None:
            newest = newest.where(schema.probe_runs.c.outcome == outcome)
        query = sa.select(schema.probe_runs).where(schema.probe_runs.c.id.in_(newest))
        with self._read() as connection:
            return {row.mac: ProbeRun(**row._mapping) for row in connection.execute(query)}

    def probes(self, mac: str, *, outcome: str | None = None, limit: int = 2) -> list[ProbeRun]:
        """The newest `limit` probe runs of one duck, oldest first; with `outcome`, those of that outcome."""
        query = sa.select(schema.probe_runs).where(schema.probe_runs.c.mac == mac)
        if outcome is not None:
            query = query.where(schema.probe_runs.c.outcome == outcome)
        query = query.order_by(schema.probe_runs.c.id.desc()).limit(limit)
        with self._read() as connection:
            return [ProbeRun(**row._mapping) for row in connection.execute(query)][::-1]

    def measurements(self, mac: str, name: str, *, limit: int = 100) -> list[Measurement]:
        """The newest `limit` values of one measurement, oldest first."""
        table = schema.measurements
        query = sa.select(
            table.c.mac, table.c.at_s, table.c.name, table.c.value, table.c.unit, table.c.probe_run_id
        ).where((table.c.mac == mac) & (table.c.name == name))
        query = query.order_by(table.c.at_s.desc(), table.c.id.desc()).limit(limit)
        with self._read() as connection:
            return [Measurement(**row._mapping) for row in connection.execute(query)][::-1]

    def measurement_names(self) -> list[str]:
        """Everything that was ever measured, by name."""
        name = schema.measurements.c.name
        with self._read() as connection:
            return list(connection.execute(sa.select(name).distinct().order_by(name)).scalars())

    # -- holds -----------------------------------------------------------------------------------------

    def add_hold(self, mac: str, kind: str, reason: str) -> int:
        """Keep a duck out of service. Kinds: `human`, `automatic`."""
        with self._write() as connection:
            result = connection.execute(
                sa.insert(schema.holds).values(
                    mac=mac, kind=kind, reason=reason, placed_by=self.actor, placed_at_s=self._clock(), lifted_by=""
                )
            )
            return _new_id(result)

    def lift_holds(self, mac: str, kind: str, *, ids: Sequence[int] | None = None) -> int:
        """Lift the duck's holds of one kind, or those of them with these ids, and say how many there were.

        Nothing lifts a hold of the other kind.
        """
        table = schema.holds
        mine = (table.c.mac == mac) & (table.c.kind == kind) & table.c.lifted_at_s.is_(None)
        if ids is not None:
            mine &= table.c.id.in_(list(ids))
        with self._write() as connection:
            values = {"lifted_by": self.actor, "lifted_at_s": self._clock()}
            return int(connection.execute(sa.update(table).where(mine).values(**values)).rowcount)

    def holds(self) -> list[Hold]:
        """The holds in force, oldest first."""
        query = sa.select(schema.holds).where(schema.holds.c.lifted_at_s.is_(None)).order_by(schema.holds.c.id)
        with self._read() as connection:
            return [Hold(**row._mapping) for row in connection.execute(query)]

    # -- placements and generations --------------------------------------------------------------------

    def add_placement(
        self,
        generation: int,
        mac: str,
        rank: int,
        model: str,
        *,
        num_chunks: int,
        total_bytes: int,
        moved_bytes: int,
        outcome: str,
    ) -> None:
        """Keep what one duck was given for one plan."""
        with self._write() as connection:
            connection.execute(
                sa.insert(schema.placements).values(
                    at_s=self._clock(),
                    generation=generation,
                    mac=mac,
                    rank=rank,
                    model=model,
                    num_chunks=num_chunks,
                    total_bytes=total_bytes,
                    moved_bytes=moved_bytes,
                    outcome=outcome,
                )
            )

    def latest_placements(self) -> dict[str, Placement]:
        """The newest placement of each duck, by MAC."""
        newest = sa.select(sa.func.max(schema.placements.c.id)).group_by(schema.placements.c.mac)
        query = sa.select(schema.placements).where(schema.placements.c.id.in_(newest))
        with self._read() as connection:
            return {row.mac: Placement(**row._mapping) for row in connection.execute(query)}

    def next_generation(self, at_least: int = 0) -> int:
        """A roster generation that was never given out, above `at_least` (what ducks have seen)."""
        table = schema.counters
        mine = table.c.name == "generation"
        with self._write() as connection:
            value = connection.execute(sa.select(table.c.value).where(mine).with_for_update()).scalar()
            following = max(value or 0, at_least) + 1
            if value is None:
                connection.execute(sa.insert(table).values(name="generation", value=following))
            else:
                connection.execute(sa.update(table).where(mine).values(value=following))
            return following


def _new_id(result: sa.CursorResult[Any]) -> int:
    key = result.inserted_primary_key
    assert key is not None
    return int(key[0])
