"""The box answers and its daemon does not; or the daemon has nowhere to put its chunks."""

from __future__ import annotations

from datetime import timedelta

from duckfleet.fleet.diagnosis.case import Case
from duckfleet.fleet.diagnosis.findings import Evidence, Severity
from duckfleet.fleet.diagnosis.sources.raw import words
from duckfleet.fleet.diagnosis.tables.rows import DECISIVE, GOOD, HARDLY, LESS, RARELY, SOME, STRONG, Clue, Symptom
from duckfleet.fleet.diagnosis.tables.silent import daemon_is_gone
from duckfleet.fleet.diagnosis.tables.silent_history import is_refused, shell_works

STORE_PATH = "/var/lib/duckfleet"
MANY_RESTARTS = 3
RESTARTS_WITHIN = timedelta(days=1)


def daemon_gone(case: Case) -> tuple[Evidence, ...]:
    if not daemon_is_gone(case):
        return ()
    going = case.history.going or {}
    said = "; ".join(f"{key}: {words(going[key])}" for key in ("error", "ping", "ssh") if words(going.get(key)))
    said = said or case.history.last_error
    return (case.tells(said, case.history.silent_since),)


def refused_connection(case: Case) -> Evidence | None:
    error = words((case.history.going or {}).get("error")) or case.history.last_error
    return case.tells("the kernel refuses connections: nobody listens") if is_refused(error) else None


def accepts_and_says_nothing(case: Case) -> Evidence | None:
    going = case.history.going or {}
    if is_refused(words(going.get("error"))) or not shell_works(case):
        return None
    return case.tells("ssh works, the daemon does not answer")


def shell_does_not_answer(case: Case) -> Evidence | None:
    ssh = words((case.history.going or {}).get("ssh"))
    return case.tells(f"ssh: {ssh}") if ssh and not shell_works(case) and not is_refused(ssh) else None


def daemon_ended(case: Case) -> Evidence | None:
    log = case.look.kernel_log
    marks = log.value.of("memory_killed_daemon", "daemon_crashed", "daemon_gives_up") if log.value else ()
    return case.says(log, marks[-1].line) if marks else None


def kernel_in_trouble(case: Case) -> Evidence | None:
    log = case.look.kernel_log
    marks = log.value.of("lockup", "panic", "oops", "hung_task", "disk_failing") if log.value else ()
    return case.says(log, marks[-1].line) if marks else None


def store_is_full(case: Case) -> Evidence | None:
    """The file system that holds the chunks; a full /tmp or a read-only image is none of it."""
    storage = case.look.storage
    path = case.history.refused_path or STORE_PATH
    for system in storage.value.holding(path) if storage.value else ():
        if system.is_full:
            return case.says(
                storage, f"{system.mount} has {system.available:,} of {system.total:,} {system.counts} left"
            )
    return None


def chunk_was_refused(case: Case) -> Evidence | None:
    at = case.history.refused_for_space_at
    storage = case.look.storage.value
    holding = storage.holding(case.history.refused_path or STORE_PATH) if storage else ()
    if at is None or (holding and not any(system.is_nearly_full for system in holding)):
        return None
    return case.tells("refused a chunk for want of space", at)


def log_says_no_space(case: Case) -> Evidence | None:
    log = case.look.kernel_log
    marks = log.value.of("no_space") if log.value else ()
    return case.says(log, marks[-1].line) if marks else None


def storage_full(case: Case) -> tuple[Evidence, ...]:
    return tuple(evidence for evidence in (store_is_full(case), chunk_was_refused(case)) if evidence)


def daemon_comes_and_goes(case: Case) -> Evidence | None:
    losses = [at for at in case.history.daemon_losses if case.look.now - at <= RESTARTS_WITHIN]
    if len(losses) < MANY_RESTARTS:
        return None
    return case.tells(f"came back {len(losses)} times after refusing connections", losses[-1])


def daemon_unsteady(case: Case) -> tuple[Evidence, ...]:
    """It is there now and was not for a while, by no order of ours."""
    return tuple(sign for sign in (daemon_comes_and_goes(case), daemon_ended(case)) if sign)


SYMPTOMS = (
    Symptom(
        "daemon_gone",
        "the box answers, its daemon does not",
        Severity.CRITICAL,
        daemon_gone,
        {
            "duckd_crashed": 0.8,
            "hung_os": 0.08,
            "storage_full": 0.06,
            "dimm_faulty": 0.03,
            "image_or_dhcp_server": 0.03,
        },
        (
            Clue(refused_connection, {"duckd_crashed": SOME, "hung_os": RARELY}),
            Clue(accepts_and_says_nothing, {"duckd_crashed": SOME}),
            Clue(shell_does_not_answer, {"hung_os": GOOD, "duckd_crashed": LESS}),
            Clue(daemon_ended, {"duckd_crashed": GOOD}, rest=LESS),
            Clue(kernel_in_trouble, {"hung_os": STRONG, "dimm_faulty": SOME}, rest=LESS),
            Clue(store_is_full, {"storage_full": DECISIVE}),
            Clue(chunk_was_refused, {"storage_full": STRONG}),
            Clue(log_says_no_space, {"storage_full": GOOD}),
        ),
    ),
    Symptom(
        "storage_full",
        "no room for chunks",
        Severity.DEGRADED,
        storage_full,
        {"storage_full": 0.98, "duckd_crashed": 0.02},
        (Clue(chunk_was_refused, {"storage_full": SOME}), Clue(store_is_full, {"duckd_crashed": HARDLY})),
        part_of=("daemon_gone",),
    ),
    Symptom(
        "daemon_unsteady",
        "its daemon ends and comes back",
        Severity.REPAIR,
        daemon_unsteady,
        {"duckd_crashed": 0.85, "storage_full": 0.05, "dimm_faulty": 0.1},
        (Clue(daemon_comes_and_goes, {"duckd_crashed": SOME}), Clue(store_is_full, {"storage_full": DECISIVE})),
        part_of=("daemon_gone", "silent_after_wake", "went_silent", "memory_errors"),
    ),
)
