"""Messages and prompts to token ids, with the model's own tokenizer and its chat template or dialect."""

from __future__ import annotations

from typing import Any

from duckfleet.runtime.dialect import Dialect
from duckfleet.runtime.engine.detokenizer import IncrementalDetokenizer
from duckfleet.runtime.engine.token_bytes import TokenBytes, Tokenizer
from duckfleet.runtime.server.api.dialect_schema import DialectChatRequest
from duckfleet.runtime.server.api.errors import ApiError, invalid
from duckfleet.runtime.server.api.schema import ChatRequest, CompletionRequest, Message, joined_text
from duckfleet.runtime.server.api.turns import encode_chat

_NORMALIZER_SHRINK = 4  # a normalizer may compose characters: no real text becomes shorter than this fraction


class PromptReader:
    """Not thread-safe: a tokenizer of `transformers` changes its own state while it encodes."""

    def __init__(
        self, tokenizer: Tokenizer, token_bytes: TokenBytes, ctx_len: int, dialect: Dialect | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._token_bytes = token_bytes
        self._ctx_len = ctx_len
        self._dialect = dialect
        longest = max((len(token_bytes[token]) for token in range(len(token_bytes))), default=1)
        longest_special = max((len(text) for text in token_bytes.special_texts), default=0)
        self._max_text_bytes = ctx_len * max(longest, longest_special, 1) * _NORMALIZER_SHRINK

    def chat(self, request: ChatRequest) -> tuple[int, ...]:
        """The prompt of a chat. Raises `ApiError` when the template refuses the messages."""
        if self._dialect is not None and isinstance(request, DialectChatRequest):
            text = encode_chat(self._dialect, request)
            self._check_size(len(text.encode()), "messages")
            return self._encode(text, "messages", add_special_tokens=False)
        messages = [_plain(message) for message in request.messages]
        if not self._tokenizer.chat_template:
            raise invalid(
                "messages", "This model has no chat template: use /v1/completions instead.", "no_chat_template"
            )
        self._check_size(sum(len(message["content"].encode()) for message in messages), "messages")
        try:
            text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # a template is a program of the model's authors: it may raise anything
            raise invalid(
                "messages", f"Invalid 'messages': the model's chat template refuses them: {error}", "chat_template"
            ) from error
        ids = self._encode(text, "messages", add_special_tokens=False)
        if not ids:
            raise invalid("messages", "Invalid 'messages': the model's chat template makes an empty prompt of them.")
        return ids

    def completion(self, request: CompletionRequest) -> tuple[tuple[int, ...], ...]:
        """The prompts of a completion request, none empty."""
        match request.prompt:
            case None:
                return (self._document_start(),)
            case str(text):
                return (self._text(text, "prompt"),)
            case [str(), *_] as texts:
                return tuple(self._text(str(text), f"prompt[{i}]") for i, text in enumerate(texts))
            case [int(), *_] as tokens:
                return (tuple(tokens),)  # type: ignore[arg-type]
            case lists:
                return tuple(tuple(tokens) for tokens in lists)  # type: ignore[arg-type]

    def texts(self, request: CompletionRequest, prompts: tuple[tuple[int, ...], ...]) -> tuple[str, ...]:
        """The prompts as text, for an echo."""
        match request.prompt:
            case None:
                return ("",)
            case str(text):
                return (text,)
            case [str(), *_] as texts:
                return tuple(map(str, texts))
            case _:
                return tuple(self._shown(prompt) for prompt in prompts)

    def _shown(self, prompt: tuple[int, ...]) -> str:
        detokenizer = IncrementalDetokenizer(self._token_bytes)
        return "".join(map(detokenizer.push, prompt))

    def _text(self, text: str, param: str) -> tuple[int, ...]:
        self._check_size(len(text.encode()), param)
        return self._encode(text, param, add_special_tokens=True) or self._document_start()

    def _document_start(self) -> tuple[int, ...]:
        for token in (self._tokenizer.bos_token_id, self._tokenizer.eos_token_id):
            if token is not None:
                return (token,)
        raise invalid("prompt", "Invalid 'prompt': it is empty, and this model has no token that starts a document.")

    def _encode(self, text: str, param: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        try:
            return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))
        except (TypeError, UnicodeError) as error:
            raise invalid(param, f"Invalid '{param}': the tokenizer cannot encode it: {error}.") from error

    def _check_size(self, text_bytes: int, param: str) -> None:
        """Refuse what cannot fit before time is spent on cutting it into tokens."""
        if text_bytes > self._max_text_bytes:
            raise ApiError(
                400,
                f"'{param}' has {text_bytes} bytes of text, which cannot fit into this model's context of "
                f"{self._ctx_len} tokens. Shorten '{param}'.",
                param=param,
                code="context_length_exceeded",
            )


def _plain(message: Message) -> dict[str, Any]:
    """A message as chat templates expect it: content as one string."""
    # "developer" is the newer name of "system"; templates of open models know the older one.
    plain = {"role": "system" if message.role == "developer" else message.role, "content": joined_text(message.content)}
    return plain if message.name is None else {**plain, "name": message.name}
