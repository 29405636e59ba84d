"""What the parts of one server share: the engine, the settings, the metrics, and who is being served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from duckfleet.runtime.dialect import Dialect
from duckfleet.runtime.engine import Engine, Generation, GenerationRequest
from duckfleet.runtime.server.api.errors import SERVER, ApiError, api_error, shutting_down
from duckfleet.runtime.server.api.prompts import PromptReader
from duckfleet.runtime.server.metrics import FabricStats, ServerMetrics
from duckfleet.runtime.server.settings import ServerSettings

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request as the log and the metrics see it."""

    request_id: str
    method: str
    path: str  # one of the server's own, or "other"
    started_at: float
    status: int | None = None  # None: nothing was sent
    fields: dict[str, object] = field(default_factory=dict)


class Serving:
    """Lives in the event loop's thread, but for what says otherwise."""

    def __init__(
        self,
        engine: Engine,
        model_name: str,
        settings: ServerSettings,
        fabric_stats: FabricStats | None,
        dialect: Dialect | None = None,
        aliases: tuple[str, ...] = (),
    ) -> None:
        self.engine = engine
        self.model_name = model_name
        self.aliases = aliases
        self._fabric_stats = fabric_stats
        self.settings = settings
        self.metrics = ServerMetrics(engine, fabric_stats)
        self.prompts = PromptReader(engine.tokenizer, engine.token_bytes, engine.limits.ctx_len, dialect)
        self.dialect = dialect
        self.draining = False
        self.in_flight: dict[str, Generation] = {}
        # One thread: cutting a long text into tokens takes seconds, and a tokenizer serves one caller at a time.
        self._prompt_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prompts")

    async def read_prompt(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a method of `prompts` in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._prompt_thread, lambda: read(*args, **kwargs))

    def close(self) -> None:
        """No more prompts are read."""
        self._prompt_thread.shutdown(wait=False, cancel_futures=True)

    def lost_ducks(self) -> list[str]:
        """The ducks for want of which the last forward was given up; none after one that succeeded."""
        try:
            found = self._fabric_stats().get("lost_ducks") if self._fabric_stats is not None else None
        except Exception:  # as in /metrics: a fabric that is being closed
            return []
        return [str(duck) for duck in found] if isinstance(found, list) else []

    def require_model(self, name: str) -> None:
        if name != self.model_name and name not in self.aliases:
            message = f"The model '{name[:120]}' does not exist here; this server has '{self.model_name}'."
            raise ApiError(404, message, param="model", code="model_not_found")

    def submit(self, request: GenerationRequest, record: RequestRecord, prompt_param: str) -> Generation:
        """Raises `ApiError`."""
        if self.draining:
            raise shutting_down()
        try:
            generation = self.engine.submit(request)
        except Exception as error:
            raise api_error(error, prompt_param) from error
        self.in_flight[record.request_id] = generation
        return generation

    def ended(self, generation: Generation, record: RequestRecord) -> None:
        """The request is over, for whatever reason; what is left of its generation is stopped."""
        generation.cancel("the client is gone")
        self.in_flight.pop(record.request_id, None)
        metrics = generation.metrics
        self.metrics.generation_ended(metrics)
        rate = metrics.tokens_per_s
        record.fields.update(
            prompt_tokens=metrics.prompt_tokens,
            completion_tokens=metrics.completion_tokens,
            queue_s=round(metrics.queue_s, 6),
            ttft_s=None if metrics.ttft_s is None else round(metrics.ttft_s, 6),
            tokens_per_s=None if rate is None else round(rate, 3),
        )

    def cut_error(self, generation: Generation, error: BaseException, prompt_param: str) -> ApiError:
        """An error that ends an answer under way, with how far it came."""
        api = api_error(error, prompt_param)
        count = generation.metrics.completion_tokens
        if api.kind == SERVER and count:
            return ApiError(api.status, f"{api.message} (after {count} tokens)", api.kind, api.param, api.code)
        return api
