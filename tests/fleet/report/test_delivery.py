"""Delivery against real servers on loopback: what arrives, what is tried again, what the next report says of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from duckfleet.fleet.cli import run
from duckfleet.fleet.report.delivery import outbox
from duckfleet.fleet.report.delivery.settings import SettingsError, load_settings
from duckfleet.fleet.report.run import Made, make_report
from tests.fleet.report.pond import Pond
from tests.fleet.report.postbox import Postbox, open_postbox


@dataclass
class Post:
    """What was posted to one."""

    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Hook:
    """A web server that answers with the codes it is told, then with 200."""

    codes: list[int] = field(default_factory=list)
    posts: list[Post] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?key=secret"


@pytest.fixture
def hook() -> Iterator[Hook]:
    told = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.posts.append(Post(self.path, dict(self.headers), body))
            self.send_response(told.codes.pop(0) if told.codes else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield told
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def postbox() -> Iterator[Postbox]:
    with open_postbox() as box:
        yield box


Configure = Callable[..., Pond]


@pytest.fixture
def configured(pond: Pond) -> Configure:
    def write(*, mail: str = "", hook: str = "") -> Pond:
        pond.fill(2)
        (pond.state / "report.toml").write_text(mail + hook)
        return pond

    return write


def mail_table(postbox: Postbox, *recipients: str) -> str:
    return f'[mail]\nport = {postbox.port}\nsender = "fleet@pond.example"\nrecipients = {json.dumps(recipients)}\n'


def report(pond: Pond) -> Made:
    return make_report(pond.context, waits_s=(0.0, 0.0))


def test_a_mail_says_it_as_text_and_carries_the_page(configured: Configure, postbox: Postbox) -> None:
    made = report(configured(mail=mail_table(postbox, "keeper@pond.example", "boss@pond.example")))
    assert made.undelivered == () and set(postbox.mails) == {"keeper@pond.example", "boss@pond.example"}
    (mail,) = postbox.mails["keeper@pond.example"]
    assert mail["Subject"] == f"[pond] {made.rendered.page.verdict}" and mail["To"] == "keeper@pond.example"
    body, (page,) = mail.get_body(("plain",)), list(mail.iter_attachments())
    assert body is not None
    assert body.get_content().splitlines() == made.rendered.markdown.splitlines()
    assert page.get_filename() == made.rendered.stem + ".html"
    assert page.get_content().splitlines() == made.rendered.html.splitlines()


def test_a_webhook_gets_a_line_for_people_and_the_report_for_programs(configured: Configure, hook: Hook) -> None:
    pond = configured(hook=f'[[webhooks]]\nurl = "{hook.url}"\ntoken_file = "TOKEN"\n')
    token = pond.state / "token"
    token.write_text("s3cret\n")
    settings = pond.state / "report.toml"
    settings.write_text(settings.read_text().replace("TOKEN", str(token)))
    made = report(pond)
    (post,) = hook.posts
    assert made.undelivered == () and post.path == "/hook?key=secret"
    assert post.headers["Authorization"] == "Bearer s3cret"
    assert post.body["text"] == f"pond: {made.rendered.page.verdict}"
    assert post.body["report"] == json.loads(made.rendered.json)


def test_what_fails_for_a_moment_is_tried_again_at_once(configured: Configure, hook: Hook, postbox: Postbox) -> None:
    hook.codes, postbox.answers = [503, 429], ["451 busy", "421 later"]
    pond = configured(mail=mail_table(postbox, "keeper@pond.example"), hook=f'[[webhooks]]\nurl = "{hook.url}"\n')
    assert report(pond).undelivered == ()
    assert len(hook.posts) == 3 and len(postbox.mails["keeper@pond.example"]) == 1
    assert outbox.pending(pond.state / "reports") == ()


def test_what_fails_is_said_in_the_next_report_and_arrives_with_it(configured: Configure, hook: Hook) -> None:
    hook.codes = [500, 500, 500, 502]
    pond = configured(hook=f'[[webhooks]]\nurl = "{hook.url}"\n')
    first = report(pond)
    (failed,) = first.undelivered
    assert (failed.error, failed.num_attempts) == ("answered 500 Internal Server Error", 3)
    assert "secret" not in failed.target, "a URL's query is not for everybody who reads the report"

    second = report(pond)  # the first is refused once more, the second arrives
    (late,) = second.rendered.page.undelivered
    assert (late.report_at_s, late.num_attempts, late.arrived_at_s) == (first.rendered.page.at_s, 4, 0.0)
    assert "answered 502" in second.rendered.html and "answered 502" in second.rendered.markdown
    assert second.undelivered == ()

    third = report(pond)  # now the first arrives, before the third
    (late,) = third.rendered.page.undelivered
    assert late.arrived_at_s > 0 and "it arrived" in third.rendered.html
    posted = [post.body["report"]["at_s"] for post in hook.posts[-2:]]
    assert posted == [first.rendered.page.at_s, third.rendered.page.at_s]
    assert report(pond).rendered.page.undelivered == ()


def test_a_refused_receiver_does_not_cost_the_others_theirs(configured: Configure, postbox: Postbox) -> None:
    made = report(configured(mail=mail_table(postbox, "nobody@pond.example", "keeper@pond.example")))
    (failed,) = made.undelivered
    assert failed.target == "mail to nobody@pond.example" and "550 no such user" in failed.error
    assert failed.num_attempts == 1, "a refusal is final"
    assert len(postbox.mails["keeper@pond.example"]) == 1


def test_servers_that_are_not_there(configured: Configure, capsys: pytest.CaptureFixture[str], hook: Hook) -> None:
    pond = configured(mail='[mail]\nport = 1\nsender = "a@b.example"\nrecipients = ["c@d.example"]\n',
                      hook='[[webhooks]]\nurl = "http://127.0.0.1:1/"\n')  # fmt: skip
    made = report(pond)
    assert [item.target for item in made.undelivered] == ["mail to c@d.example", "webhook 127.0.0.1:1/"]
    assert all("refused" in item.error for item in made.undelivered)


def test_only_reports_with_findings_where_that_is_asked(pond: Pond, hook: Hook) -> None:
    (pond.state / "report.toml").write_text(f'[[webhooks]]\nurl = "{hook.url}"\nwhen = "findings"\n')
    pond.fill(1, sick=False)
    report(pond)
    assert hook.posts == []
    pond.now_s += 60
    pond.fill(1)
    report(pond)
    assert len(hook.posts) == 1


def test_a_failed_delivery_is_an_exit_code_of_its_own_without_findings(
    pond: Pond, hook: Hook, capsys: pytest.CaptureFixture[str]
) -> None:
    pond.fill(1, sick=False)
    hook.codes = [404]
    (pond.state / "report.toml").write_text(f'[[webhooks]]\nurl = "{hook.url}"\n')
    arguments = ["--state", str(pond.state), "--site", str(pond.site_path), "report"]
    assert run([*arguments, "--no-deliver"]) == 0 and hook.posts == []
    assert run(arguments) == 1
    assert "answered 404 Not Found; the next report tries again" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[mial]\n", ":1: mial: unknown key"),
        ('[mail]\nsender = "a@b"\n', ":1: mail.recipients: must be a list"),
        ('[mail]\nsender = "a"\nrecipients = ["c@d"]\n', ":2: mail.sender: 'a' must be a mail address"),
        ('[mail]\nsender = "a@b"\nrecipients = ["c@d\\nBcc: e@f"]\n', ":3: mail.recipients"),
        ('[mail]\nsender = "a@b"\nrecipients = ["c@d"]\nsecurity = "ssl"\n', ":4: mail.security: 'ssl' must be one of"),
        ('[mail]\nsender = "a@b"\nrecipients = ["c@d"]\nuser = "x"\n', "belong together"),
        (
            '[mail]\nhost = "mx"\nsender = "a@b"\nrecipients = ["c@d"]\nuser = "x"\npassword_file = "y"\n',
            "in the clear",
        ),
        ('[mail]\nport = 0\nsender = "a@b"\nrecipients = ["c@d"]\n', ":2: mail.port: 0 must be a port"),
        ('[mail]\nsender = "a@b"\nrecipients = ["c@d"]\nca_file = "x"\n', ":4: mail.ca_file: is of use only"),
        ('[[webhooks]]\nurl = "ftp://x"\n', ":2: webhooks.0.url: 'ftp://x' must be an http or https URL"),
        ("webhooks = 3\n", ":1: webhooks: must be a list of tables"),
        ("[", "report.toml:"),
    ],
)
def test_settings_that_are_of_no_use_are_said_with_their_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "report.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as error:
        load_settings(path)
    assert complaint in str(error.value)
