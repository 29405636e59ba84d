"""The two forms of an answer, whole and streamed, for both endpoints. Errors of the engine pass through."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

from duckfleet.runtime.dialect import Reply, ReplyReader
from duckfleet.runtime.engine import Generation, TokenBytes, TokenEvent, TokenLogprob
from duckfleet.runtime.server.api.responses import (
    ChoiceText,
    CompletionLogprobs,
    Json,
    ResponseHead,
    chat_delta,
    chat_message,
    completion_choice,
    timings,
    usage,
)
from duckfleet.runtime.server.api.turns import delta_fields, reply_fields


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """An answer of `/v1/chat/completions`."""

    head: ResponseHead
    generation: Generation
    tokens: TokenBytes
    include_usage: bool
    new_reader: Callable[[], ReplyReader] | None = None  # of a model whose replies have more parts than content

    async def whole(self) -> Json:
        choices = [ChoiceText() for _ in range(self.generation.request.num_choices)]
        async for event in self.generation:
            choices[event.choice].add(event)
        parts = [self._parts(choice) for choice in choices]
        with_logprobs = self.generation.request.sampling.logprobs is not None
        messages = [
            chat_message(i, choice, parts[i], self.tokens, with_logprobs=with_logprobs)
            for i, choice in enumerate(choices)
        ]
        return self.head.json(messages, **_costs(self.generation))

    async def chunks(self) -> AsyncGenerator[Json]:
        more = {"usage": None} if self.include_usage else {}
        started = -1
        reader: ReplyReader | None = None
        async for event in self.generation:
            if event.choice > started:
                started = event.choice
                reader = None if self.new_reader is None else self.new_reader()
                opening: Json = {"role": "assistant", "content": "", "refusal": None}
                yield self.head.json([chat_delta(event.choice, opening, (), self.tokens, None)], **more)
            delta, finish_reason = _delta(event, reader)
            if delta or event.logprobs:
                yield self.head.json([chat_delta(event.choice, delta, event.logprobs, self.tokens, None)], **more)
            if finish_reason:
                yield self.head.json([chat_delta(event.choice, {}, (), self.tokens, finish_reason)], **more)
        if self.include_usage:
            yield self.head.json([], **_costs(self.generation))

    def _parts(self, choice: ChoiceText) -> Json:
        if self.new_reader is None:
            return {"content": choice.text}
        reader = self.new_reader()
        reply = reader.push(choice.text).then(reader.finish())
        choice.finish_reason = _finish_reason(choice.finish_reason, reply)
        return reply_fields(reply)


def _delta(event: TokenEvent, reader: ReplyReader | None) -> tuple[Json, str | None]:
    """What a chunk adds, and how the choice ended with it."""
    if reader is None:
        return {"content": event.text} if event.text or event.logprobs else {}, event.finish_reason
    reply = reader.push(event.text)
    if event.finish_reason:
        reply = reply.then(reader.finish())
    return delta_fields(reply), _finish_reason(event.finish_reason, reply)


def _finish_reason(of_engine: str | None, reply: Reply) -> str | None:
    return "tool_calls" if reply.tool_calls else of_engine


@dataclass(frozen=True, slots=True)
class CompletionAnswer:
    """An answer of `/v1/completions`; `echoes` are the texts of the prompts, where they were asked for."""

    head: ResponseHead
    generation: Generation
    tokens: TokenBytes
    include_usage: bool
    echoes: Sequence[str]

    async def whole(self) -> Json:
        choices = [_Piece(i) for i in range(self.generation.request.num_choices)]
        async for piece in self._pieces():
            choice = choices[piece.choice]
            choice.text += piece.text
            choice.entries += piece.entries
            choice.finish_reason = piece.finish_reason
        return self.head.json([self._json(choice, None) for choice in choices], **_costs(self.generation))

    async def chunks(self) -> AsyncGenerator[Json]:
        more = {"usage": None} if self.include_usage else {}
        lists: CompletionLogprobs | None = None
        choice = -1
        async for piece in self._pieces():
            if piece.choice != choice:
                choice, lists = piece.choice, CompletionLogprobs(self.tokens)
            if piece.text or piece.entries or piece.finish_reason:
                yield self.head.json([self._json(piece, lists)], **more)
        if self.include_usage:
            yield self.head.json([], **_costs(self.generation))

    async def _pieces(self) -> AsyncGenerator[_Piece]:
        """The engine's events, with the echo of the prompt before those of each choice."""
        n = self.generation.request.n
        choice = -1
        scores: Sequence[TokenLogprob | None] = ()
        async for event in self.generation:
            piece = _Piece(event.choice, event.text, list(event.logprobs), event.finish_reason)
            if event.prompt_logprobs is not None:
                scores = event.prompt_logprobs
            if event.choice != choice:
                choice = event.choice
                if self.echoes:
                    piece.text = self.echoes[choice // n] + piece.text
                    piece.entries = [*scores, *piece.entries]
            yield piece

    def _json(self, piece: _Piece, lists: CompletionLogprobs | None) -> Json:
        request = self.generation.request
        logprobs = None
        if request.sampling.logprobs is not None:
            prompt = request.prompts[piece.choice // request.n]
            logprobs = (lists or CompletionLogprobs(self.tokens)).json(piece.entries, prompt)
        return completion_choice(piece.choice, piece.text, logprobs, piece.finish_reason)


@dataclass(slots=True)
class _Piece:
    choice: int
    text: str = ""
    entries: list[TokenLogprob | None] = field(default_factory=list)
    finish_reason: str | None = None


def _costs(generation: Generation) -> Json:
    metrics = generation.metrics
    return {"usage": usage(metrics), "timings": timings(metrics)}
