"""Reading a JSON body within its bounds."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from starlette.requests import ClientDisconnect, Request

from duckfleet.runtime.server.api.errors import ApiError, invalid
from duckfleet.runtime.server.settings import ServerSettings

T = TypeVar("T")

_LARGE_BYTES = 32 * 1024
_MAX_NAMES = 2048  # of one object; the most that a parameter has a use for is 1024, the biases
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # json.loads has joined the pairs


async def read_body(request: Request, settings: ServerSettings, parse: Callable[[object], T]) -> T:
    """What `parse` makes of the JSON. Raises `ApiError`: 400, 408 when it comes too slowly, 413 when it is too large.

    A large body is parsed in a thread, so that the answers under way go on.
    """
    if request.url.query:
        raise invalid(None, "Query parameters are not supported: put everything into the body.", "unknown_parameter")
    _check_type(request)
    data = await _read(request, settings)
    if len(data) > _LARGE_BYTES:
        return await asyncio.to_thread(lambda: parse(parse_json(data)))
    return parse(parse_json(data))


def _check_type(request: Request) -> None:
    content_type = request.headers.get("content-type")
    if content_type is None:
        raise invalid(None, "The header 'Content-Type' is missing: it must be 'application/json'.", "content_type")
    media_type, _, parameters = content_type.partition(";")
    if media_type.strip().lower() != "application/json":
        message = f"Unsupported content type: '{content_type[:80]}'. It must be 'application/json'."
        raise invalid(None, message, "content_type")
    charset = parameters.strip().lower().partition("charset=")[2].strip('"')
    if charset not in ("", "utf-8", "utf8"):
        raise invalid(None, f"Unsupported charset: '{charset[:40]}'. JSON must be UTF-8.", "content_type")
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise invalid(
            None, f"Unsupported content encoding: '{encoding[:40]}'. Send the body as it is.", "content_encoding"
        )


async def _read(request: Request, settings: ServerSettings) -> bytes:
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:20]) > settings.max_body_bytes:
        raise _too_large(settings)
    data = bytearray()
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            async for piece in request.stream():
                if len(data) + len(piece) > settings.max_body_bytes:
                    raise _too_large(settings)
                data += piece
    except TimeoutError:
        message = f"The body did not arrive within {settings.body_timeout_s:g} s."
        raise ApiError(408, message, code="body_timeout") from None
    except ClientDisconnect:
        raise ApiError(400, "The body ended early.", code="body_incomplete") from None
    return bytes(data)


def _too_large(settings: ServerSettings) -> ApiError:
    message = f"The body is larger than {settings.max_body_bytes} bytes, the most that this server reads."
    return ApiError(413, message, code="body_too_large")


def parse_json(data: bytes) -> object:
    """Strict JSON (RFC 8259) in UTF-8: no NaN, no repeated names. Raises `ApiError`, status 400."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_object, parse_constant=_no_constant)
        if _SURROGATE_ESCAPE.search(data):
            _refuse_lone_surrogates(value, "")
        return value
    except UnicodeDecodeError as error:
        raise invalid(None, f"The body is not UTF-8: byte {error.start} is not part of a character.", "json") from None
    except RecursionError:
        raise invalid(None, "The body is not usable JSON: it is nested too deeply.", "json") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise invalid(None, f"The body is not JSON: {error.msg} ({where}).", "json") from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise invalid(None, f"The body is not usable JSON: {error}.", "json") from None


def _refuse_lone_surrogates(value: object, path: str) -> None:
    """JSON can write them, but they are no characters: nothing behind this could encode them."""
    match value:
        case str():
            if _LONE_SURROGATE.search(value):
                name = path or "the body"
                raise invalid(path or None, f"Invalid '{name}': a lone surrogate is no character.", "json")
        case list():
            for i, item in enumerate(value):
                _refuse_lone_surrogates(item, f"{path}[{i}]")
        case dict():
            for key, item in value.items():
                inner = f"{path}.{_shown(key)}" if path else _shown(key)
                _refuse_lone_surrogates(key, inner)
                _refuse_lone_surrogates(item, inner)


def _shown(name: str) -> str:
    return name[:80].encode("utf-8", "backslashreplace").decode()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _MAX_NAMES:
        raise invalid(None, f"An object has {len(pairs)} names; no parameter takes more than {_MAX_NAMES}.", "json")
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise invalid(_shown(twice), f"Invalid '{_shown(twice)}': the name appears twice in one object.", "json")
    return result


def _no_constant(name: str) -> NoReturn:
    raise invalid(None, f"The body is not JSON: {name} is not a JSON number.", "json")
