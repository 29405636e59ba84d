"""Deliver reports, try again, and remember what did not arrive for the next report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from duckfleet.fleet.report import archive
from duckfleet.fleet.report.archive import Rendered
from duckfleet.fleet.report.delivery.mail import MailTarget
from duckfleet.fleet.report.delivery.settings import Settings
from duckfleet.fleet.report.delivery.target import DeliveryFailed, Target
from duckfleet.fleet.report.delivery.webhook import WebhookTarget
from duckfleet.fleet.report.page import Undelivered
from duckfleet.inventory.codec import from_plain, to_plain
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.whole_file import write_whole

FILE = "outbox.json"
WAITS_S = (2.0, 10.0)  # between the attempts of one run
MAX_ATTEMPTS = 30  # of one report to one receiver, then it is given up


def targets_of(settings: Settings) -> tuple[Target, ...]:
    mails = [MailTarget(settings.mail, recipient) for recipient in settings.mail.recipients] if settings.mail else []
    return (*mails, *(WebhookTarget(webhook) for webhook in settings.webhooks))


def pending(folder: Path) -> tuple[Undelivered, ...]:
    """What did not arrive so far; a list that cannot be read is an empty one."""
    try:
        values = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return tuple(from_plain(Undelivered, value) for value in values)
    except (OSError, ValueError, TypeError, OperatorError):
        return ()


def keep(folder: Path, undelivered: Sequence[Undelivered]) -> None:
    """What the next run shall try again."""
    waiting = [item for item in undelivered if not item.arrived_at_s and item.num_attempts < MAX_ATTEMPTS]
    write_whole(folder / FILE, json.dumps(to_plain(waiting)) + "\n")


def try_again(folder: Path, targets: Sequence[Target]) -> tuple[Undelivered, ...]:
    """One more attempt at everything that waits; receivers that are no longer named and reports gone are forgotten."""
    known = {target.name: target for target in targets}
    tried = []
    for item in pending(folder):
        target, rendered = known.get(item.target), archive.load(folder, item.report_at_s)
        if target is None or rendered is None:
            continue
        try:
            target.send(rendered)
            tried.append(replace(item, arrived_at_s=time.time()))
        except DeliveryFailed as error:
            tried.append(replace(item, error=str(error), num_attempts=item.num_attempts + 1))
    return tuple(tried)


def deliver(
    rendered: Rendered,
    targets: Sequence[Target],
    waits_s: Sequence[float] = WAITS_S,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Undelivered, ...]:
    """To every receiver that wants it; returns what did not arrive after the last attempt."""
    failed = []
    for target in targets:
        if target.when == "findings" and not rendered.page.findings:
            continue
        for number, wait_s in enumerate((*waits_s, None), 1):
            try:
                target.send(rendered)
                break
            except DeliveryFailed as error:
                if error.is_final or wait_s is None:
                    failed.append(Undelivered(target.name, rendered.page.at_s, str(error), number))
                    break
                sleep(wait_s)
    return tuple(failed)
