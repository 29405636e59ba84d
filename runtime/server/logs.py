"""Structured logs: one event a line, with named fields; what people wrote or were answered is never in them."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

_FIELDS = "fields"


def log_event(logger: logging.Logger, level: int, event: str, **fields: object) -> None:
    """Log `event` with its fields; fields of None are left out."""
    known = {name: value for name, value in fields.items() if value is not None}
    logger.log(level, "%s", event, extra={_FIELDS: known})


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, event, then the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=True)


class KeyValue(logging.Formatter):
    """The same for people: `time LEVEL event name=value …`, quoted as JSON where a value has more than a word."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, _FIELDS, {})
        pairs = "".join(f" {name}={_shown(value)}" for name, value in fields.items())
        line = f"{_time(record)} {record.levelname} {record.getMessage()}{pairs}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure_logging(*, as_json: bool, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send all logs to `stream` (standard error), in one of the two forms. For programs, never for libraries."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if as_json else KeyValue())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for chatty in ("httpx", "httpcore", "uvicorn.error"):
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _shown(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if text.isascii() and text.isprintable() and " " not in text and '"' not in text else json.dumps(text)
