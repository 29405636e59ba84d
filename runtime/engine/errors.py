"""Errors of the engine, typed by who must act."""

from __future__ import annotations

from duckfleet.inventory.errors import DuckfleetError, InternalError, OperatorError


class QueueFull(DuckfleetError):
    """As many requests wait as may wait; the client should try again later."""

    def __init__(self, num_waiting: int) -> None:
        self.num_waiting = num_waiting
        super().__init__(f"{num_waiting} requests are waiting already; try again later")


class EngineClosed(DuckfleetError):
    """The engine takes no more requests."""


class InvalidRequest(OperatorError):
    """A request that can never be served; `field` is the attribute that is wrong."""

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(message)


class ContextOverflow(InvalidRequest):
    """Prompt and completion together do not fit into the context."""

    def __init__(self, ctx_len: int, prompt_len: int, completion_len: int) -> None:
        self.ctx_len, self.prompt_len, self.completion_len = ctx_len, prompt_len, completion_len
        super().__init__(
            "prompts",
            f"the context holds {ctx_len} tokens, but {prompt_len + completion_len} were asked for "
            f"({prompt_len} in the prompt, {completion_len} for the completion): shorten one of them",
        )


class GenerationCancelled(DuckfleetError):
    """The generation was cut before its end; the message says why."""


class UnusableLogits(InternalError):
    """The decoder's logits hold NaN or +inf, or nothing but -inf: no token can be drawn from them."""
