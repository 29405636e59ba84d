"""The parts of the OpenAPI document that FastAPI cannot read off handlers that parse their own bodies."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from duckfleet.runtime.server.api.schema import ChatRequest, CompletionRequest

_REF = "#/components/schemas/{model}"
_ERRORS = {
    400: "Something in the request is wrong; the message names the field",
    401: "No valid API key",
    404: "The model does not exist here",
    408: "The body came too slowly",
    413: "The body is too large",
    429: "The queue is full",
    500: "A bug of the server",
    503: "A duck was lost, or the server is shutting down",
}
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def schemas(model_name: str, aliases: tuple[str, ...] = (), chat: type[ChatRequest] = ChatRequest) -> dict[str, Any]:
    """`components.schemas` of a server that has one model."""
    _, document = models_json_schema([(chat, "validation"), (CompletionRequest, "validation")], ref_template=_REF)
    definitions = document["$defs"]
    for request in (chat.__name__, "CompletionRequest"):
        definitions[request]["properties"]["model"]["enum"] = [model_name, *aliases]
    return {**definitions, "Error": _ERROR_SCHEMA}


def json_body(model: str) -> dict[str, Any]:
    """`requestBody` of an endpoint."""
    return {"required": True, "content": {"application/json": {"schema": {"$ref": _REF.format(model=model)}}}}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` of an endpoint."""
    content = {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}
    return {status: {"description": _ERRORS[status], "content": content} for status in statuses}
