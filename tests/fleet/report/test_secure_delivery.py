"""Mail with STARTTLS, in TLS and with a login, against a real server that insists on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from duckfleet.fleet.report.run import Made, make_report
from tests.fleet.report.pond import Pond
from tests.fleet.report.postbox import PASSWORD, USER, Certified, Postbox, certify, open_postbox

HERE = "127.0.0.1"
pytestmark = pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
Send = Callable[..., Made]


@pytest.fixture
def certified(tmp_path: Path) -> Certified:
    return certify(tmp_path, HERE)


@pytest.fixture
def send(pond: Pond, tmp_path: Path) -> Send:
    """Make a report and send it to the postbox, with these settings beside its port."""
    pond.fill(1)

    def to(postbox: Postbox, *, password: str = PASSWORD, **settings: object) -> Made:
        secret = tmp_path / "password"
        secret.write_text(f"{password}\n")
        lines = {"port": postbox.port, "sender": "fleet@pond.example", **settings}
        if settings.get("user"):
            lines["password_file"] = str(secret)
        said = "".join(
            f"{key} = {json.dumps(value if isinstance(value, int) else str(value))}\n" for key, value in lines.items()
        )
        (pond.state / "report.toml").write_text(f'[mail]\nrecipients = ["keeper@pond.example"]\n{said}')
        return make_report(pond.context, waits_s=(0.0, 0.0))

    return to


def test_starttls_and_a_login(send: Send, certified: Certified) -> None:
    with open_postbox(tls_context=certified.context, require_starttls=True, with_login=True) as postbox:
        made = send(postbox, security="starttls", user=USER, ca_file=certified.ca_file)
    assert made.undelivered == () and len(postbox.mails["keeper@pond.example"]) == 1
    assert postbox.logins == [(USER, True)]


def test_tls_from_the_first_byte_and_a_login(send: Send, certified: Certified) -> None:
    with open_postbox(ssl_context=certified.context, auth_require_tls=False, with_login=True) as postbox:
        made = send(postbox, security="tls", user=USER, ca_file=certified.ca_file)
    assert made.undelivered == () and len(postbox.mails["keeper@pond.example"]) == 1


def test_a_wrong_password_is_final_and_said(send: Send, certified: Certified) -> None:
    with open_postbox(tls_context=certified.context, require_starttls=True, with_login=True) as postbox:
        made = send(postbox, password="moo", security="starttls", user=USER, ca_file=certified.ca_file)
    (failed,) = made.undelivered
    assert failed.num_attempts == 1 and ": 535 " in failed.error and postbox.mails == {}


def test_a_server_that_wants_tls_or_a_login_is_not_tried_thrice(send: Send, certified: Certified) -> None:
    with open_postbox(tls_context=certified.context, require_starttls=True, with_login=True) as postbox:
        (failed,) = send(postbox).undelivered
        assert (failed.num_attempts, ": 530 " in failed.error) == (1, True), failed.error
        (failed,) = send(postbox, security="starttls", ca_file=certified.ca_file).undelivered
        assert (failed.num_attempts, ": 530 " in failed.error) == (1, True), failed.error
    assert postbox.mails == {}


def test_no_password_and_no_report_for_a_server_without_starttls(send: Send, certified: Certified) -> None:
    with open_postbox(auth_require_tls=False, with_login=True) as postbox:
        (failed,) = send(postbox, security="starttls", user=USER, ca_file=certified.ca_file).undelivered
    assert "STARTTLS" in failed.error and failed.num_attempts == 1
    assert postbox.logins == [] and postbox.mails == {}


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_neither_for_a_server_that_cannot_prove_who_it_is(
    send: Send, certified: Certified, tmp_path: Path, security: str
) -> None:
    """Signed by nobody that we trust; or the right paper, made out to another name."""
    other = certify(tmp_path, "other.example")
    for shown, known in ((certified, ""), (other, other.ca_file)):
        by = "ssl_context" if security == "tls" else "tls_context"
        with open_postbox(**{by: shown.context}, auth_require_tls=False, with_login=True) as postbox:
            ca_file = {"ca_file": known} if known else {}
            (failed,) = send(postbox, security=security, user=USER, **ca_file).undelivered
        assert "certificate is not to be trusted" in failed.error and failed.num_attempts == 1, failed.error
        assert postbox.logins == [] and postbox.mails == {}


def test_a_ca_file_of_no_use_is_named(send: Send, certified: Certified, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for path in (tmp_path / "gone.pem", empty):
        with open_postbox(tls_context=certified.context) as postbox:
            (failed,) = send(postbox, security="starttls", ca_file=path).undelivered
        assert str(path) in failed.error and failed.num_attempts == 1
