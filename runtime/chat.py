"""A chat in the terminal, with any server of OpenAI's API. Free of torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from rich.console import Console
from rich.text import Text

from duckfleet.inventory.errors import DuckfleetError, MachineError, OperatorError
from duckfleet.runtime.word_wrap import WordWrap

_CONNECT_S = 10.0
_SILENCE_S = 600.0  # a long prompt takes its time before the first token
_PARTS = ("prepare", "send", "wait", "fetch")
_HELP = """\
  /system TEXT   set the system message (without TEXT: show it) and start anew
  /reset         forget the conversation
  /help          this
  /quit          end, as ctrl-D does
A line that ends with a backslash goes on in the next. Ctrl-C stops an answer and keeps what has come."""

# Whatever a model says, the terminal is only written to: control characters are shown, not obeyed.
_SHOWN_CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(0x20), 0x7F, *range(0x80, 0xA0))}
_SHOWN_CONTROLS |= dict.fromkeys(
    (*range(0x202A, 0x202F), *range(0x2066, 0x206A)), ""
)  # they turn the reading direction
for _kept in "\n\t":
    del _SHOWN_CONTROLS[ord(_kept)]


@dataclass(slots=True)
class Conversation:
    """What has been said, as the server is told it."""

    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    def asking(self, text: str) -> list[dict[str, str]]:
        """The messages of the next request."""
        opening = [{"role": "system", "content": self.system}] if self.system else []
        return [*opening, *self.turns, {"role": "user", "content": text}]

    def add(self, question: str, answer: str) -> None:
        self.turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


@dataclass(slots=True)
class Answer:
    """What came back for one question."""

    text: str = ""
    has_reasoning: bool = False
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)


class ChatClient:
    """Asks one model of one server. A context manager."""

    def __init__(self, base_url: str, model: str | None, api_key: str | None, options: dict[str, Any]) -> None:
        """`model` of None takes the first that the server has; `options` go into every request."""
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(_SILENCE_S, connect=_CONNECT_S)
        self._base_url = base_url.rstrip("/").removesuffix("/v1")
        try:
            self._http = httpx.Client(base_url=self._base_url + "/v1", headers=headers, timeout=timeout)
        except (httpx.InvalidURL, UnicodeError) as error:
            raise OperatorError(f"{base_url!r} is no address of a server: {error}") from error
        self._options = options
        self._model = model

    @property
    def model(self) -> str:
        """Raises `OperatorError` or `MachineError` when the server cannot be asked for it."""
        if self._model is None:
            self._model = self._first_model()
        return self._model

    def __enter__(self) -> ChatClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def ask(
        self,
        messages: list[dict[str, str]],
        show: Callable[[str], None],
        show_reasoning: Callable[[str], None] = lambda _: None,
    ) -> Answer:
        """Stream an answer; `show` gets its text piece by piece, `show_reasoning` what is thought before it.

        A KeyboardInterrupt ends the answer, not the chat.
        """
        body = {"stream": True, "stream_options": {"include_usage": True}, **self._options}
        answer = Answer()
        with _explained(self._base_url):
            try:
                request = {"model": self.model, "messages": messages, **body}
                with self._http.stream("POST", "/chat/completions", json=request) as response:
                    _require_ok(response)
                    for event in _events(response):
                        _take(event, answer, show, show_reasoning)
            except KeyboardInterrupt:
                answer.finish_reason = "stopped"
        return answer

    def _first_model(self) -> str:
        with _explained(self._base_url):
            response = self._http.get("/models", timeout=_CONNECT_S)
            _require_ok(response)
            try:
                return str(response.json()["data"][0]["id"])
            except (ValueError, LookupError, TypeError):
                raise MachineError(f"{self._base_url} does not say which models it has") from None


class _explained:
    """Failures of the connection, in words."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        match error:
            case httpx.ConnectError() | httpx.ConnectTimeout():
                raise MachineError(f"no server answers at {self._base_url} ({error}); is `duckctl serve` running?")
            case httpx.UnsupportedProtocol():
                raise OperatorError(f"{self._base_url!r} is no address of a server: it must begin with http://")
            case httpx.TimeoutException():
                raise MachineError(f"{self._base_url} was silent for too long")
            case httpx.HTTPError():
                raise MachineError(f"the connection to {self._base_url} broke: {error}")


def _require_ok(response: httpx.Response) -> None:
    if response.is_success:
        return
    response.read()
    try:
        message = str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        message = response.text[:200]
    if response.status_code == 401:
        raise OperatorError(f"the server wants an API key that it knows: {message}")
    raise MachineError(f"the server answered {response.status_code}: {message}")


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The data of server-sent events (WHATWG HTML, section 9.2), up to [DONE]."""
    buffered = ""
    for text in response.iter_text():
        *lines, buffered = (buffered + text).split("\n")
        for line in lines:
            if line.startswith("data:"):
                data = line.removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                event = json.loads(data)
                if "error" in event:
                    raise MachineError(str(event["error"].get("message", event["error"])))
                yield event
    raise MachineError("the answer ended early: the connection was closed")


def _take(
    event: dict[str, Any], answer: Answer, show: Callable[[str], None], show_reasoning: Callable[[str], None]
) -> None:
    for choice in event.get("choices", ()):
        if thought := choice.get("delta", {}).get("reasoning_content"):
            show_reasoning(thought)
            answer.has_reasoning = True
        piece = choice.get("delta", {}).get("content") or ""
        if piece:
            if answer.has_reasoning and not answer.text:
                show_reasoning("\n")
            answer.text += piece
            show(piece)
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
    answer.usage = event.get("usage") or answer.usage
    answer.timings = event.get("timings") or answer.timings


def statistics_line(answer: Answer) -> str:
    """Tokens, speed and where the time of a forward went, as far as the server says."""
    parts = []
    if (count := answer.usage.get("completion_tokens")) is not None:
        parts.append(f"{count} tokens")
    timings = answer.timings
    if timings.get("tokens_per_s") is not None:
        parts.append(f"{timings['tokens_per_s']:.1f} tok/s")
    if timings.get("ttft_s") is not None:
        parts.append(f"first after {timings['ttft_s']:.2f} s")
    if timings.get("num_forwards"):
        split = (f"{part} {timings.get(part + '_us', 0.0) / timings['num_forwards'] / 1000:.2f}" for part in _PARTS)
        parts.append(f"ms a token: {', '.join(split)}")
    if answer.finish_reason == "length":
        parts.append("cut by the length limit")
    if answer.finish_reason == "stopped":
        parts.append("stopped")
    return " · ".join(parts)


def run_chat(
    base_url: str,
    model: str | None = None,
    api_key: str | None = None,
    *,
    message: str | None = None,
    system: str | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    think: bool = False,
    console: Console | None = None,
    read_line: Callable[[str], str] | None = None,
) -> int:
    """Chat until /quit; or, with `message`, print one answer and end. Returns an exit status.

    `read_line` gets a prompt and returns a line, or raises EOFError or KeyboardInterrupt, as `input` does.
    """
    options: dict[str, Any] = {
        name: value for name, value in (("max_tokens", max_tokens), ("temperature", temperature)) if value is not None
    }
    if think:
        options["thinking"] = {"type": "enabled"}
    console = console or Console(highlight=False)
    try:
        with ChatClient(base_url, model, api_key, options) as client:
            conversation = Conversation(system)
            if message is not None:
                with _Screen(console) as screen:
                    answer = client.ask(conversation.asking(message), screen.show)
                console.print()
                if answer.has_reasoning and not answer.text:
                    raise OperatorError("the answer was cut while the model was still thinking: raise --max-tokens")
                return 0
            console.print(Text.assemble(("duckfleet", "bold"), f" · {client.model} · /help tells what there is"))
            _talk(client, conversation, console, read_line or _line_editor())
            return 0
    except DuckfleetError as error:
        Console(stderr=True, highlight=False).print(Text(str(error), "red")) if message else _complain(console, error)
        return 1


def _talk(client: ChatClient, conversation: Conversation, console: Console, read_line: Callable[[str], str]) -> None:
    while True:
        try:
            line = _read(read_line)
        except KeyboardInterrupt:
            console.print(Text("/quit or ctrl-D ends the chat", "dim"))
            continue
        except EOFError:
            console.print()
            return
        if line in ("/quit", "/exit"):
            return
        if line.startswith("/"):
            _obey(line, conversation, console)
        elif line.strip():
            _answer(client, conversation, console, line)


def _read(read_line: Callable[[str], str]) -> str:
    line = read_line("❯ ")
    while line.endswith("\\"):
        line = line[:-1] + "\n" + read_line("… ")
    return line.strip() if line.startswith("/") else line


def _obey(line: str, conversation: Conversation, console: Console) -> None:
    command, _, rest = line.partition(" ")
    match command:
        case "/reset":
            conversation.turns.clear()
            console.print(Text("the conversation is forgotten", "dim"))
        case "/system" if rest.strip():
            conversation.system = rest.strip()
            conversation.turns.clear()
            console.print(Text("the system message is set, the conversation begins anew", "dim"))
        case "/system":
            console.print(Text(conversation.system or "there is no system message", "dim"))
        case "/help":
            console.print(Text(_HELP, "dim"))
        case _:
            console.print(Text(f"{command} is no command; /help tells what there is", "red"))


def _answer(client: ChatClient, conversation: Conversation, console: Console, question: str) -> None:
    """Ask and show. A question that failed is not part of the conversation."""
    try:
        with _Screen(console) as screen:
            answer = client.ask(
                conversation.asking(question), screen.show, lambda thought: screen.show(thought, "dim italic")
            )
    except DuckfleetError as error:
        console.print()
        _complain(console, error)
        return
    conversation.add(question, answer.text)
    console.print()
    console.print(Text(statistics_line(answer), "dim"))


class _Screen:
    """An answer as it comes: a word that it is waited for, then its text, wrapped on a terminal. A context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._wrap = WordWrap(console.width) if console.is_terminal else None
        self._waiting = console.status(Text("waiting for the first token", "dim"))
        self._style = ""

    def __enter__(self) -> _Screen:
        self._waiting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.stop()
        if self._wrap is not None:
            self._print(self._wrap.flush())

    def show(self, piece: str, style: str = "") -> None:
        self._waiting.stop()
        if self._wrap is not None and style != self._style:
            self._print(self._wrap.flush())
        self._style = style
        safe = piece.translate(_SHOWN_CONTROLS)
        self._print(safe if self._wrap is None else self._wrap.feed(safe))

    def _print(self, text: str) -> None:
        self._console.print(Text(text, self._style), end="", soft_wrap=True)
        self._console.file.flush()


def _complain(console: Console, error: DuckfleetError) -> None:
    console.print(Text(str(error).translate(_SHOWN_CONTROLS), "red"), soft_wrap=True)


def _line_editor() -> Callable[[str], str]:
    """`input`, with arrow keys and a history where there is a terminal."""
    if sys.stdin.isatty():
        import readline  # noqa: F401 - importing it is what makes `input` edit lines
    return input
