"""Errors as the API shows them."""

from __future__ import annotations

from dataclasses import dataclass

from duckfleet.inventory.errors import DuckfleetError, MachineError
from duckfleet.runtime.engine import (
    ContextOverflow,
    EngineClosed,
    GenerationCancelled,
    InvalidRequest,
    QueueFull,
)

INVALID_REQUEST = "invalid_request_error"
AUTHENTICATION = "authentication_error"
RATE_LIMIT = "rate_limit_error"
SERVER = "server_error"


@dataclass(eq=False)  # not frozen: an exception is given its traceback
class ApiError(Exception):
    """What a client is told: an HTTP status and OpenAI's error object."""

    status: int
    message: str
    kind: str = INVALID_REQUEST
    param: str | None = None
    code: str | None = None
    retry_after_s: int | None = None

    def __str__(self) -> str:
        return self.message

    @property
    def body(self) -> dict[str, object]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        headers = {}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.retry_after_s is not None:
            headers["retry-after"] = str(self.retry_after_s)
        return headers


def invalid(param: str | None, message: str, code: str = "invalid_value", *, status: int = 400) -> ApiError:
    """The client's mistake; `param` is what it wrote wrong."""
    return ApiError(status, message, INVALID_REQUEST, param, code)


def shutting_down() -> ApiError:
    message = "The server is shutting down and takes no more requests."
    return ApiError(503, message, SERVER, None, "shutting_down", retry_after_s=10)


def api_error(error: BaseException, prompt_param: str) -> ApiError:
    """The engine's errors in the API's words; `prompt_param` is what the endpoint calls its prompt."""
    match error:
        case ApiError():
            return error
        case ContextOverflow():
            message = (
                f"This model's context holds {error.ctx_len} tokens, but you asked for "
                f"{error.prompt_len + error.completion_len} ({error.prompt_len} in '{prompt_param}', "
                f"{error.completion_len} for the completion). Shorten '{prompt_param}' or the completion."
            )
            return invalid(prompt_param, message, "context_length_exceeded")
        case InvalidRequest():
            param = prompt_param if error.field == "prompts" else error.field
            return invalid(param, f"Invalid '{param}': {error}.")
        case QueueFull():
            message = f"The queue is full: {error.num_waiting} requests are waiting. Try again later."
            return ApiError(429, message, RATE_LIMIT, None, "queue_full", retry_after_s=1)
        case EngineClosed():
            return ApiError(503, f"The engine is closed: {error}.", SERVER, None, "engine_closed")
        case GenerationCancelled():
            return ApiError(503, f"The generation was cut: {error}.", SERVER, None, "generation_cut")
        case MachineError():
            return ApiError(503, f"The fleet could not finish this request: {error}", SERVER, None, _code(error))
        case DuckfleetError():
            return ApiError(500, f"This request failed: {error}", SERVER, None, _code(error))
        case _:
            return ApiError(500, "This request failed inside the server; see its log.", SERVER, None, "internal_error")


def _code(error: BaseException) -> str:
    """DuckLost -> duck_lost."""
    name = type(error).__name__
    return "".join("_" + char.lower() if char.isupper() else char for char in name).lstrip("_")
