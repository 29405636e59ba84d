"""Tokens to text, one at a time: a character is shown when it is complete."""

from __future__ import annotations

import codecs

from duckfleet.runtime.engine.token_bytes import TokenBytes


class IncrementalDetokenizer:
    """Bytes of tokens in, whole characters out.

    A character split over tokens waits for its last byte. Bytes that can be no part of a character, whatever follows,
    are left out rather than shown as U+FFFD, and so is a character that is still incomplete when the text ends: U+FFFD
    is shown only where the model writes that very character.
    """

    def __init__(self, tokens: TokenBytes) -> None:
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._strip_space = tokens.strips_first_space

    @property
    def num_pending_bytes(self) -> int:
        """Bytes of an incomplete character."""
        return len(self._decoder.getstate()[0])

    def push(self, token_id: int) -> str:
        """The characters that this token completes."""
        data = self._tokens[token_id]
        if self._strip_space and data:
            self._strip_space = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> None:
        """The text is over."""
        self._decoder.reset()
