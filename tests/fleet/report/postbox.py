"""A real SMTP server on loopback: in the clear, with STARTTLS or in TLS, with and without a login."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

USER, PASSWORD = "fleet", "quack and dive"


@dataclass
class Postbox:
    """An SMTP server's side: mails by recipient, who logged in, and answers to give instead of taking one."""

    mails: dict[str, list[EmailMessage]] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)
    logins: list[tuple[str, bool]] = field(default_factory=list)  # who, and whether after STARTTLS
    port: int = 0

    async def handle_RCPT(self, _server: Any, _session: Any, envelope: Any, address: str, options: Any) -> str:
        if address.startswith("nobody@"):
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        if self.answers:
            return self.answers.pop(0)
        message = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(message, EmailMessage)
        for recipient in envelope.rcpt_tos:
            self.mails.setdefault(recipient, []).append(message)
        return "250 OK"

    def log_in(self, _server: Any, session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login.decode(), session.ssl is not None))
        known = (data.login, data.password) == (USER.encode(), PASSWORD.encode())
        return AuthResult(success=known, handled=False)  # the server answers


@contextmanager
def open_postbox(**options: Any) -> Iterator[Postbox]:
    """Options are those of aiosmtpd's `Controller` and `SMTP`."""
    box = Postbox()
    if options.pop("with_login", False):
        options |= {"authenticator": box.log_in, "auth_required": True}
    controller = Controller(box, hostname="127.0.0.1", port=0, **options)
    # Port 0 lets the kernel choose; the controller's own check that it answers would connect to port 0.
    controller._trigger_server = lambda: _greeting(controller)  # type: ignore[method-assign]
    controller.start()
    box.port = controller.server.sockets[0].getsockname()[1]
    try:
        yield box
    finally:
        controller.stop()


def _greeting(controller: Controller) -> None:
    plain = socket.create_connection(controller.server.sockets[0].getsockname(), timeout=10.0)
    if controller.ssl_context is not None:
        anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
        plain = anyone.wrap_socket(plain)
    with plain as client:
        assert client.recv(100).startswith(b"220 ")


@dataclass(frozen=True)
class Certified:
    """A server's certificate, made for a name or address, and the file by which it is known."""

    ca_file: Path
    context: ssl.SSLContext


def certify(folder: Path, host: str) -> Certified:
    """A certificate of its own for `host`, valid today."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mail of the pond")])
    try:
        known_as: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        known_as = x509.DNSName(host)
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([known_as]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    ca_file, key_file = folder / f"{host}.pem", folder / f"{host}.key"
    ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca_file, key_file)
    return Certified(ca_file, context)
