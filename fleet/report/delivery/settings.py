"""Where reports go: `report.toml` of the state directory, parsed once; every complaint names file, line and value."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.toml_lines import KeyPath, key_lines, line_of

FILE = "report.toml"
SECURITIES = ("none", "starttls", "tls")
WHEN = ("always", "findings")
_MAIL_KEYS = ("host", "port", "security", "ca_file", "sender", "recipients", "user", "password_file", "when")
_WEBHOOK_KEYS = ("url", "token_file", "when")


@dataclass(frozen=True, slots=True)
class Mail:
    """A mail server and who gets the report."""

    host: str
    port: int
    security: str  # of SECURITIES
    sender: str
    recipients: tuple[str, ...]
    user: str = ""
    password_file: str = ""
    ca_file: str = ""  # PEM: only who is certified by these is believed to be the server; empty: the system's
    when: str = "always"


@dataclass(frozen=True, slots=True)
class Webhook:
    """A URL that is POSTed the report as JSON; the token file's content goes along as a bearer token (RFC 6750)."""

    url: str
    token_file: str = ""
    when: str = "always"


@dataclass(frozen=True, slots=True)
class Settings:
    mail: Mail | None = None
    webhooks: tuple[Webhook, ...] = ()


class SettingsError(OperatorError):
    """The settings do not say something usable."""


def load_settings(path: Path) -> Settings:
    """No file: nothing is delivered. Raises `SettingsError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Settings()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read: {error}") from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: {error}") from error
    return _Reader(document, key_lines(text), path).settings()


class _Reader:
    def __init__(self, document: dict[str, Any], lines: dict[KeyPath, int], path: Path) -> None:
        self.document = document
        self.lines = lines
        self.path = path

    def fail(self, at: KeyPath, why: str) -> SettingsError:
        dotted = ".".join(str(part) for part in at)
        return SettingsError(f"{self.path}:{line_of(self.lines, at)}: {dotted}: {why}")

    def settings(self) -> Settings:
        self.known((), self.document, ("mail", "webhooks"))
        mail = self.mail(self.document["mail"]) if "mail" in self.document else None
        hooks = self.document.get("webhooks", [])
        if not isinstance(hooks, list):
            raise self.fail(("webhooks",), "must be a list of tables: write [[webhooks]]")
        return Settings(mail, tuple(self.webhook(("webhooks", number), table) for number, table in enumerate(hooks)))

    def mail(self, table: Any) -> Mail:
        at: KeyPath = ("mail",)
        self.known(at, table, _MAIL_KEYS)
        security = self.choice(at, table, "security", SECURITIES)
        port = table.get("port", 465 if security == "tls" else 587 if security == "starttls" else 25)
        if type(port) is not int or not 0 < port < 65536:
            raise self.fail((*at, "port"), f"{port!r} must be a port")
        recipients = table.get("recipients")
        if not isinstance(recipients, list) or not recipients:
            raise self.fail((*at, "recipients"), "must be a list of addresses")
        for address in (table.get("sender"), *recipients):
            if (
                not isinstance(address, str)
                or address.count("@") != 1
                or any(c.isspace() or c in "<>," for c in address)
            ):
                raise self.fail(
                    (*at, "sender" if address == table.get("sender") else "recipients"),
                    f"{address!r} must be a mail address",
                )
        user, password_file = self.text(at, table, "user", ""), self.text(at, table, "password_file", "")
        if bool(user) != bool(password_file):
            raise self.fail(at, "user and password_file belong together")
        if (
            user
            and security == "none"
            and self.text(at, table, "host", "127.0.0.1") not in ("127.0.0.1", "localhost", "::1")
        ):
            raise self.fail(
                (*at, "user"), "the password would cross the network in the clear: set security to starttls or tls"
            )
        ca_file = self.text(at, table, "ca_file", "")
        if ca_file and security == "none":
            raise self.fail((*at, "ca_file"), "is of use only with security starttls or tls")
        return Mail(
            self.text(at, table, "host", "127.0.0.1"),
            port,
            security,
            table["sender"],
            tuple(recipients),
            user,
            password_file,
            ca_file,
            self.choice(at, table, "when", WHEN),
        )

    def webhook(self, at: KeyPath, table: Any) -> Webhook:
        self.known(at, table, _WEBHOOK_KEYS)
        url = self.text(at, table, "url", "")
        if not url.startswith(("http://", "https://")):
            raise self.fail((*at, "url"), f"{url!r} must be an http or https URL")
        return Webhook(url, self.text(at, table, "token_file", ""), self.choice(at, table, "when", WHEN))

    def known(self, at: KeyPath, table: Any, keys: tuple[str, ...]) -> None:
        if not isinstance(table, dict):
            raise self.fail(at, "must be a table")
        for key in table:
            if key not in keys:
                raise self.fail((*at, key), f"unknown key; known here: {', '.join(keys)}")

    def text(self, at: KeyPath, table: dict[str, Any], key: str, default: str) -> str:
        value = table.get(key, default)
        if not isinstance(value, str):
            raise self.fail((*at, key), f"{value!r} must be a text")
        return value

    def choice(self, at: KeyPath, table: dict[str, Any], key: str, choices: tuple[str, ...]) -> str:
        value = self.text(at, table, key, choices[0])
        if value not in choices:
            raise self.fail((*at, key), f"{value!r} must be one of {', '.join(choices)}")
        return value
