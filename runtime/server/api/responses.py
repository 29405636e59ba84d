"""OpenAI's response objects, from events of the engine. Plain dictionaries, ready for JSON."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field

from duckfleet.runtime.engine import GenerationMetrics, TokenBytes, TokenEvent, TokenLogprob

Json = dict[str, object]
_LEAST_LOGPROB = -9999.0  # OpenAI's value for "very unlikely"; JSON has no -inf


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What all objects of one response share."""

    response_id: str
    created: int  # Unix time, s
    model: str
    object_name: str

    def json(self, choices: list[Json], **more: object) -> Json:
        return {
            "id": self.response_id,
            "object": self.object_name,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **more,
        }


@dataclass(slots=True)
class ChoiceText:
    """One choice, gathered from its events."""

    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, event: TokenEvent) -> None:
        self.text += event.text
        self.logprobs.extend(event.logprobs)
        self.finish_reason = event.finish_reason


def usage(metrics: GenerationMetrics) -> Json:
    return {
        "prompt_tokens": metrics.prompt_tokens,
        "completion_tokens": metrics.completion_tokens,
        "total_tokens": metrics.prompt_tokens + metrics.completion_tokens,
    }


def timings(metrics: GenerationMetrics) -> Json:
    """Our own addition to a response: where the time of the request went. The `*_us` are sums over its forwards."""
    rate = metrics.tokens_per_s
    return {
        "queue_s": round(metrics.queue_s, 6),
        "ttft_s": None if metrics.ttft_s is None else round(metrics.ttft_s, 6),
        "decode_s": round(metrics.decode_s, 6),
        "tokens_per_s": None if rate is None else round(rate, 3),
        "num_forwards": metrics.num_forwards,
        "forward_s": round(metrics.forward_s, 6),
        "prepare_us": round(metrics.prepare_us, 1),
        "send_us": round(metrics.send_us, 1),
        "wait_us": round(metrics.wait_us, 1),
        "fetch_us": round(metrics.fetch_us, 1),
    }


def chat_message(index: int, choice: ChoiceText, parts: Json, tokens: TokenBytes, *, with_logprobs: bool) -> Json:
    """`parts`: the message's content, and what else a dialect finds in its text."""
    return {
        "index": index,
        "message": {"role": "assistant", **parts, "refusal": None},
        "logprobs": chat_logprobs(choice.logprobs, tokens) if with_logprobs else None,
        "finish_reason": choice.finish_reason,
    }


def chat_delta(
    index: int, delta: Json, logprobs: Sequence[TokenLogprob], tokens: TokenBytes, finish_reason: str | None
) -> Json:
    return {
        "index": index,
        "delta": delta,
        "logprobs": chat_logprobs(logprobs, tokens) if logprobs else None,
        "finish_reason": finish_reason,
    }


def chat_logprobs(entries: Sequence[TokenLogprob], tokens: TokenBytes) -> Json:
    return {
        "content": [
            {
                **_chat_token(entry.token_id, entry.logprob, tokens),
                "top_logprobs": [_chat_token(top.token_id, top.logprob, tokens) for top in entry.top],
            }
            for entry in entries
        ],
        "refusal": None,
    }


def _chat_token(token_id: int, logprob: float, tokens: TokenBytes) -> Json:
    data = tokens[token_id] or tokens.special_text(token_id).encode()
    return {"token": data.decode(errors="backslashreplace"), "bytes": list(data), "logprob": _finite(logprob)}


def completion_choice(index: int, text: str, logprobs: Json | None, finish_reason: str | None) -> Json:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


class CompletionLogprobs:
    """The older form of log probabilities: parallel lists, with the offset of each token in the choice's text."""

    def __init__(self, tokens: TokenBytes) -> None:
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._text_len = 0

    def json(self, entries: Sequence[TokenLogprob | None], prompt: Sequence[int] = ()) -> Json:
        """Lists for the next tokens of the choice. An entry of None is the first token of `prompt`."""
        names, values, tops, offsets = [], [], [], []
        for i, entry in enumerate(entries):
            token_id = prompt[i] if entry is None else entry.token_id
            names.append(self._name(token_id))
            values.append(None if entry is None else _finite(entry.logprob))
            tops.append(None if entry is None else self._top(entry))
            offsets.append(self._text_len)
            self._text_len += len(self._decoder.decode(self._tokens[token_id]))
        return {"tokens": names, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _top(self, entry: TokenLogprob) -> Json:
        top: Json = {}
        for token in entry.top:  # most likely first: of two tokens that read alike the likelier stays
            top.setdefault(self._name(token.token_id), _finite(token.logprob))
        return top

    def _name(self, token_id: int) -> str:
        data = self._tokens[token_id]
        if not data:
            return self._tokens.special_text(token_id)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)
