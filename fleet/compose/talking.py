"""A conversation with a server, in the terminal."""

from __future__ import annotations


def chat(
    url: str,
    *,
    message: str | None,
    system: str | None = None,
    api_key: str | None,
    max_tokens: int | None,
    temperature: float | None,
    think: bool = False,
) -> int:
    """Talk to a server in the terminal; returns the exit code."""
    from duckfleet.runtime.chat import run_chat

    return run_chat(
        url,
        api_key=api_key,
        message=message,
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
        think=think,
    )
