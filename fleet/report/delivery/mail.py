"""A report as a mail: Markdown as its text, the page attached. One mail a recipient, so that each fails alone."""

from __future__ import annotations

import re
import smtplib
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path

from duckfleet.fleet.report.archive import Rendered
from duckfleet.fleet.report.delivery.settings import Mail
from duckfleet.fleet.report.delivery.target import DeliveryFailed, Secret

TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class MailTarget:
    mail: Mail
    recipient: str

    @property
    def name(self) -> str:
        return f"mail to {self.recipient}"

    @property
    def when(self) -> str:
        return self.mail.when

    def send(self, rendered: Rendered) -> None:
        """Over SMTP (RFC 5321), in the clear, after STARTTLS, or over TLS. Raises `DeliveryFailed`."""
        mail, where = self.mail, f"{self.mail.host}:{self.mail.port}"
        message = message_of(rendered, mail.sender, self.recipient)
        try:
            with self._connected() as server:
                if mail.security == "starttls":
                    server.starttls(context=self._trust())
                if mail.user:
                    server.login(mail.user, Secret(mail.password_file).read())
                server.send_message(message)
        except smtplib.SMTPRecipientsRefused as error:
            code, text = next(iter(error.recipients.values()))
            raise DeliveryFailed(f"{where}: {code} {_text(text)}", is_final=code >= 500) from error
        except smtplib.SMTPNotSupportedError as error:  # neither STARTTLS nor a way to log in is offered
            raise DeliveryFailed(f"{where}: {error}; see security and user in report.toml", is_final=True) from error
        except ssl.SSLCertVerificationError as error:
            why = f"its certificate is not to be trusted ({error.verify_message}); ca_file in report.toml names a CA"
            raise DeliveryFailed(f"{where}: {why}", is_final=True) from error
        except smtplib.SMTPResponseException as error:
            raise DeliveryFailed(
                f"{where}: {error.smtp_code} {_text(error.smtp_error)}", is_final=error.smtp_code >= 500
            ) from error
        except OSError as error:  # of sockets and TLS, and smtplib's others
            raise DeliveryFailed(f"{where}: {error.strerror or error or type(error).__name__}") from error

    def _connected(self) -> smtplib.SMTP:
        if self.mail.security == "tls":
            return smtplib.SMTP_SSL(self.mail.host, self.mail.port, timeout=TIMEOUT_S, context=self._trust())
        return smtplib.SMTP(self.mail.host, self.mail.port, timeout=TIMEOUT_S)

    def _trust(self) -> ssl.SSLContext:
        """Name and certificate are checked, always: the password goes to nobody else."""
        if not self.mail.ca_file:
            return ssl.create_default_context()
        try:
            return ssl.create_default_context(cafile=Path(self.mail.ca_file).expanduser())
        except OSError as error:  # of the file, and ssl's
            why = error.strerror or str(error)
            raise DeliveryFailed(f"{self.mail.ca_file}: no certificates in it: {why}", is_final=True) from error


def message_of(rendered: Rendered, sender: str, recipient: str) -> EmailMessage:
    """The mail. Its id follows from report and recipient: a mail that arrives twice is seen to be one."""
    page = rendered.page
    message = EmailMessage()
    message["From"], message["To"] = sender, recipient
    message["Subject"] = " ".join(f"[{page.fleet}] {page.verdict}".split())
    message["Date"] = format_datetime(datetime.fromtimestamp(page.at_s, UTC))
    local = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{rendered.stem}.{page.fleet}.{recipient}")
    message["Message-ID"] = f"<{local}@{sender.partition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834: out-of-office answers are not wanted
    message.set_content(rendered.markdown)
    message.add_attachment(rendered.html, subtype="html", filename=f"{rendered.stem}.html")
    return message


def _text(answer: bytes | str) -> str:
    return " ".join((answer.decode(errors="replace") if isinstance(answer, bytes) else answer).split())
