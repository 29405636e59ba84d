"""The terminal chat against a real server, with scripted lines."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from duckfleet.runtime.chat import Answer, run_chat, statistics_line
from duckfleet.runtime.engine import Engine
from duckfleet.runtime.errors import DuckLost
from duckfleet.runtime.server import HttpServer, create_app

MODEL = "tiny"


class Terminal:
    """Types the given lines; what it shows is kept. A line may be an exception to raise."""

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self.lines = list(lines)
        self.screen = io.StringIO()
        self.console = Console(file=self.screen, width=200, highlight=False)

    def read_line(self, prompt: str) -> str:
        if not self.lines:
            raise EOFError
        line = self.lines.pop(0)
        if isinstance(line, str):
            return line
        raise line

    def chat(self, url: str, **options: Any) -> str:
        self.status = run_chat(url, console=self.console, read_line=self.read_line, **options)
        return self.screen.getvalue()


@pytest.fixture
def parrot(byte_level_tokenizer: Any, script_decoder: Callable[..., Any]) -> Iterator[Any]:
    """Serves a model that repeats the text of its prompt after an arrow, so that a test sees what was sent."""
    decoder = script_decoder("", 0)
    encode = byte_level_tokenizer.encode
    arrow, opening = encode(">"), encode("<|im_start|>assistant\n")
    special = set(byte_level_tokenizer.added_tokens_decoder)

    def next_token(tokens: list[int]) -> int:
        start = len(tokens) - 1 - tokens[::-1].index(opening[0]) + len(opening)
        said = [*arrow, *(token for token in tokens[:start] if token not in special), byte_level_tokenizer.eos_token_id]
        return (
            said[len(tokens) - start] if start <= len(tokens) < start + len(said) else arrow[0]
        )  # asked in the prompt

    decoder.next_token = next_token
    with Engine(decoder, byte_level_tokenizer, ctx=2048) as engine, HttpServer(create_app(engine, MODEL)) as http:
        yield http, decoder


def test_a_conversation(parrot: Any) -> None:
    http, _ = parrot
    terminal = Terminal(
        "hello", "/system be kind", "/system", "one", "two\\", "lines", "/reset", "three", "/quit", "never"
    )
    shown = terminal.chat(http.url)
    assert terminal.status == 0
    assert terminal.lines == ["never"]
    asked = [
        ">user\nhello\nassistant\n",
        ">system\nbe kind\nuser\none\nassistant\n",  # /system began anew
        "assistant\n>system\nbe kind\nuser\none\nassistant\n\nuser\ntwo\nlines\nassistant\n",
        ">system\nbe kind\nuser\nthree\nassistant\n",  # /reset keeps the system message
    ]
    places = [shown.index(text) for text in asked[:3]] + [shown.rindex(asked[3])]
    assert places == sorted(places)
    assert "\nbe kind\n" in shown
    assert shown.count("tok/s · first after") == 4
    assert "ms a token: prepare 0.00, send 0.00" in shown
    assert "duckfleet · tiny" in shown


def test_one_message(parrot: Any) -> None:
    http, _ = parrot
    for url in (http.url, http.url + "/", http.url + "/v1"):
        terminal = Terminal()
        assert terminal.chat(url, message="hello", system="s") == ">system\ns\nuser\nhello\nassistant\n\n"
        assert terminal.status == 0


def test_limits_and_commands(parrot: Any) -> None:
    http, _ = parrot
    shown = Terminal("hello there", "", "   ", "/wrong", "/help", KeyboardInterrupt, "/exit").chat(
        http.url, max_tokens=3
    )
    assert "cut by the length limit" in shown
    assert "/wrong is no command" in shown
    assert "/reset" in shown
    assert "ctrl-D ends the chat" in shown
    assert shown.count("tokens") == 1, "an empty line asks nothing"


def test_errors_are_told_and_the_chat_goes_on(parrot: Any) -> None:
    http, decoder = parrot
    good = decoder.next_token

    def lost(tokens: list[int]) -> int:
        decoder.next_token = good
        raise DuckLost("duck 10.21.1.103 did not answer within 2 s")

    decoder.next_token = lost
    shown = Terminal("first", "second").chat(http.url)
    assert "duck 10.21.1.103 did not answer within 2 s" in shown
    assert ">user\nsecond\nassistant\n" in shown, "what failed is not part of the conversation"


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    assert "no server answers at http://127.0.0.1:9" in terminal.chat("http://127.0.0.1:9")
    assert terminal.status == 1
    assert Terminal().chat("http://127.0.0.1:9", message="x") == ""
    assert "duckctl serve" in capsys.readouterr().err
    assert "no address of a server" in Terminal().chat("127.0.0.1:9")
    assert "no address of a server" in Terminal().chat("http://[::1")


def test_a_key(byte_level_tokenizer: Any, script_decoder: Callable[..., Any]) -> None:
    decoder = script_decoder("quack", 0)
    with (
        Engine(decoder, byte_level_tokenizer, ctx=64) as engine,
        HttpServer(create_app(engine, MODEL, api_keys=("k",))) as http,
    ):
        assert "wants an API key" in Terminal().chat(http.url)
        assert Terminal().chat(http.url, api_key="k", message="x", max_tokens=1) != ""
        assert "there is no" not in Terminal().chat(http.url, api_key="k", model="other", message="x")


class OtherServer(BaseHTTPRequestHandler):
    """Answers a chat with the lines that the test gives it."""

    lines: tuple[bytes, ...] = ()

    def do_GET(self) -> None:
        self._send(b'{"data": [{"id": "m"}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._send(b"".join(self.lines))

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def delta(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False).encode() + b"\n\n"


@pytest.fixture
def other() -> Iterator[Callable[..., str]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), OtherServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def chat(*lines: bytes) -> str:
        OtherServer.lines = lines
        return Terminal("hello").chat(f"http://127.0.0.1:{server.server_address[1]}")

    yield chat
    server.shutdown()
    server.server_close()


def test_what_a_model_says_cannot_drive_the_terminal(other: Callable[..., str]) -> None:
    shown = other(delta("a\x1b]0;title\x07b\x9bc\u202ed\r\n\te"), b"data: [DONE]\n\n")
    assert "a\N{REPLACEMENT CHARACTER}]0;title" in shown
    assert "\n" in shown
    assert not {"\x1b", "\x07", "\x9b", "\u202e", "\r"} & set(shown)


def test_rich_markup_is_text(other: Callable[..., str]) -> None:
    assert "[red]x[/red] :duck:" in other(delta("[red]x[/red] :duck:"), b"data: [DONE]\n\n")


def test_comments_line_ends_and_unknown_fields(other: Callable[..., str]) -> None:
    shown = other(b": hello\n\n", b"event: x\n", delta("a\u2028b\x85c"), b"data:[DONE]\n\n", delta("never"))
    assert "a\u2028b" in shown
    assert "never" not in shown


def test_an_answer_that_breaks_off_is_told(other: Callable[..., str]) -> None:
    assert "ended early" in other(delta("abc"))
    assert "it broke" in other(delta("abc"), b'data: {"error": {"message": "it broke"}}\n\n')


def test_ctrl_c_ends_the_answer_and_keeps_it(parrot: Any) -> None:
    http, _ = parrot
    terminal = Terminal("hello", "again")
    seen: list[int] = []
    write = terminal.screen.write

    def interrupt(text: str) -> int:
        if ">" in text and not seen:
            seen.append(1)
            write(text)
            raise KeyboardInterrupt
        return write(text)

    terminal.screen.write = interrupt  # type: ignore[method-assign]
    shown = terminal.chat(http.url)
    assert "stopped" in shown
    assert shown.count("user\nhello") >= 1, "the question and what had come are part of the conversation"


def test_statistics_of_a_server_that_tells_nothing() -> None:
    assert statistics_line(Answer("x", "stop")) == ""


def test_it_needs_no_torch() -> None:
    code = "import duckfleet.runtime.chat, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path("/")).returncode == 0
