"""Tokens to text: held against the tokenizer's own decoder, for each kind of tokenizer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from duckfleet.runtime.engine.detokenizer import IncrementalDetokenizer
from duckfleet.runtime.engine.token_bytes import TokenBytes, UnknownTokenizer


def sentencepiece_like(*, strip: bool) -> PreTrainedTokenizerFast:
    """As Llama 2 (drops the leading space) or Gemma (keeps it): visible spaces, bytes as a fallback."""
    words = ["▁", "▁the", "▁duck", "duck", "s", "a", "é", "▁▁", "the", ".", "\n"]
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for token in [f"<0x{byte:02X}>" for byte in range(256)] + words:
        vocab[token] = len(vocab)
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.fixture(scope="module", params=["byte_level", "llama2", "gemma"])
def tokenizer(request: pytest.FixtureRequest, byte_level_tokenizer: Any) -> Any:
    if request.param == "byte_level":
        return byte_level_tokenizer
    return sentencepiece_like(strip=request.param == "llama2")


def stream(tokenizer: Any, token_ids: list[int]) -> list[str]:
    detokenizer = IncrementalDetokenizer(TokenBytes.of(tokenizer))
    return [detokenizer.push(token) for token in token_ids]


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=30))
def test_a_text_comes_back_and_never_shows_a_replacement(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_tokens_decode_as_the_tokenizer_does(tokenizer: Any, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=12))
    whole = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    shown = "".join(stream(tokenizer, ids))
    assert "\N{REPLACEMENT CHARACTER}" not in shown
    if tokenizer.convert_tokens_to_ids("<0x00>") is None:
        assert shown == whole.replace("\N{REPLACEMENT CHARACTER}", "")
    elif "\N{REPLACEMENT CHARACTER}" not in whole:  # a byte fallback gives up a whole run of bytes for a bad one
        assert shown == whole


def test_the_replacement_character_itself_is_text(byte_level_tokenizer: Any) -> None:
    text = "a\N{REPLACEMENT CHARACTER}b"
    ids = byte_level_tokenizer.encode(text, add_special_tokens=False)
    assert "".join(stream(byte_level_tokenizer, ids)) == text


def test_a_duck_of_four_tokens_appears_at_once(byte_level_tokenizer: Any) -> None:
    ids = byte_level_tokenizer.encode("a🦆b", add_special_tokens=False)
    assert len(ids) == 6, "the tokenizer does not know the duck"
    assert stream(byte_level_tokenizer, ids) == ["a", "", "", "", "🦆", "b"]


def test_added_tokens_are_text_and_special_ones_are_not(byte_level_tokenizer: Any) -> None:
    backend = Tokenizer.from_str(byte_level_tokenizer.backend_tokenizer.to_str())
    backend.add_tokens([AddedToken("<tool> é", special=False)])
    backend.add_special_tokens([AddedToken("<|tool_end|>", special=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    table = TokenBytes.of(tokenizer)
    assert table[tokenizer.convert_tokens_to_ids("<tool> é")] == "<tool> é".encode()
    assert table[tokenizer.convert_tokens_to_ids("<|tool_end|>")] == b""
    assert table.special_id("<|tool_end|>") == tokenizer.convert_tokens_to_ids("<|tool_end|>")
    assert table.special_id("<tool> é") is None
    assert table[len(table) + 7] == b"", "a head may be wider than the vocabulary"


def test_a_decoder_that_is_not_known_is_named(byte_level_tokenizer: Any) -> None:
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UnknownTokenizer, match="WordPiece"):
        TokenBytes.of(PreTrainedTokenizerFast(tokenizer_object=backend))
