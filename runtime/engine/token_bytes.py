"""The bytes each token stands for, read off the tokenizer's own decoder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Protocol

from duckfleet.inventory.errors import OperatorError


class Tokenizer(Protocol):
    """What the engine and the server use of a `transformers` tokenizer."""

    backend_tokenizer: Any
    all_special_ids: Iterable[int]
    bos_token_id: int | None
    eos_token_id: int | None
    chat_template: Any

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> Any: ...


class UnknownTokenizer(OperatorError):
    """The tokenizer decodes in a way that this table does not know."""


class TokenBytes:
    """Token id -> bytes. Special tokens stand for nothing, and an id outside the vocabulary neither.

    Known are byte-level tokenizers (GPT-2's table of printable stand-ins for bytes) and SentencePiece-like ones (a
    visible space, `<0xNN>` for single bytes). Both decode token by token, but for a leading space that some drop.
    """

    def __init__(self, table: list[bytes], special: dict[str, int], strips_first_space: bool) -> None:
        self._table = table
        self._special = special
        self._special_texts = {token_id: text for text, token_id in special.items()}
        self.strips_first_space = strips_first_space

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, token_id: int) -> bytes:
        return self._table[token_id] if 0 <= token_id < len(self._table) else b""

    @property
    def special_texts(self) -> Iterable[str]:
        """The special tokens as they are spelt."""
        return self._special.keys()

    def special_id(self, text: str) -> int | None:
        """The special token spelt exactly so, if there is one."""
        return self._special.get(text)

    def special_text(self, token_id: int) -> str:
        """How a special token is spelt; empty for any other."""
        return self._special_texts.get(token_id, "")

    @classmethod
    def of(cls, tokenizer: Tokenizer, shown: Iterable[str] = ()) -> TokenBytes:
        """`shown` are special tokens that stand for their own text.

        Raises `UnknownTokenizer` naming the decoder that is not known.
        """
        backend = tokenizer.backend_tokenizer
        vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        special_ids = {token_id for token_id, token in added.items() if token.special} | set(tokenizer.all_special_ids)
        special_ids -= {vocab[text] for text in shown if text in vocab}
        steps = _decoder_steps(json.loads(backend.to_str()).get("decoder"))
        kinds = {step["type"] for step in steps}
        if kinds == {"ByteLevel"}:
            decode = _from_byte_level
        elif kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
            decode = _visible_space_decoder(steps)
        else:
            raise UnknownTokenizer(f"the tokenizer's decoder {sorted(kinds) or None} is not one that duckfleet knows")
        table = [b""] * (max(vocab.values(), default=-1) + 1)
        for text, token_id in vocab.items():
            if token_id not in special_ids:
                table[token_id] = text.encode() if token_id in added else decode(text)
        special = {text: token_id for text, token_id in vocab.items() if token_id in special_ids}
        return cls(table, special, any(_strips_first_space(step) for step in steps))


def _decoder_steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _decoder_steps(inner)]
    return [decoder]


def _strips_first_space(step: dict[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never")
    return bool(step["type"] == "Strip" and step["content"] == " " and step["start"] > 0)


def _byte_stand_ins() -> dict[str, int]:
    """GPT-2's mapping: printable bytes stand for themselves, the other 68 for code points from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_STAND_INS = _byte_stand_ins()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _from_byte_level(token: str) -> bytes:
    if all(char in _STAND_INS for char in token):
        return bytes(_STAND_INS[char] for char in token)
    return token.encode()  # as the tokenizers library does with a token that is no byte string


def _visible_space_decoder(steps: list[dict[str, Any]]) -> Any:
    replacements = [
        (step["pattern"]["String"], step["content"])
        for step in steps
        if step["type"] == "Replace" and "String" in step["pattern"]
    ]
    replacements += [(step["replacement"], " ") for step in steps if step["type"] == "Metaspace"]
    has_bytes = any(step["type"] == "ByteFallback" for step in steps)

    def decode(token: str) -> bytes:
        byte = _BYTE_TOKEN.fullmatch(token) if has_bytes else None
        if byte:
            return bytes([int(byte[1], 16)])
        for pattern, content in replacements:
            token = token.replace(pattern, content)
        return token.encode()

    return decode
