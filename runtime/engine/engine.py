"""The engine: one thread owns the decoder and serves the queue, a step of each request at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from duckfleet.inventory.errors import DuckfleetError, InternalError
from duckfleet.runtime.engine.decoding import Cache, CacheT, Decoder
from duckfleet.runtime.engine.errors import ContextOverflow, EngineClosed, InvalidRequest
from duckfleet.runtime.engine.generation import Generation
from duckfleet.runtime.engine.progress import Feed, ModelLimits, Progress
from duckfleet.runtime.engine.request import GenerationMetrics, GenerationRequest, TokenEvent
from duckfleet.runtime.engine.sampler import F32
from duckfleet.runtime.engine.scheduler import Scheduler
from duckfleet.runtime.engine.token_bytes import TokenBytes, Tokenizer

log = logging.getLogger(__name__)

_CLOSE_S = 30.0  # a forward under way when the engine is closed may take as long as the fabric's deadline


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Totals since the start, and who is here now."""

    num_active: int = 0
    num_waiting: int = 0
    num_finished: int = 0
    num_failed: int = 0
    num_cancelled: int = 0
    num_forwards: int = 0
    forward_s: float = 0.0
    prepare_us: float = 0.0
    send_us: float = 0.0
    wait_us: float = 0.0
    fetch_us: float = 0.0


@dataclass(eq=False, slots=True)
class _Served:
    """A request between submit and its end; the worker's own, but for the generation."""

    generation: Generation
    progress: Progress
    submitted_at: float
    first_token_at: float | None = None
    metrics: GenerationMetrics = field(default_factory=GenerationMetrics)
    cache: Cache | None = None


class Engine:
    """Serves requests with one decoder.

    Up to `max_active` requests take turns (see `Scheduler`), `max_queue` more wait. A request that fails, because a
    duck was lost or for any other reason, ends with that error, and the others go on. Use it as a context manager or
    call `close`.
    """

    def __init__(
        self,
        decoder: Decoder[CacheT],
        tokenizer: Tokenizer,
        *,
        ctx: int,
        max_queue: int = 64,
        max_active: int = 4,
        prefill_chunk_len: int = 128,
        shown_special: Iterable[str] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`ctx`: tokens of prompt and completion together; each active request has a cache of that size.
        `shown_special`: special tokens that are text of a completion all the same.

        Raises `UnknownTokenizer`, and what the decoder raises for a context that it cannot have.
        """
        if ctx < 1 or prefill_chunk_len < 1:
            raise ValueError(f"ctx={ctx} and prefill_chunk_len={prefill_chunk_len} must be at least 1")
        self.tokenizer = tokenizer
        self.token_bytes = TokenBytes.of(tokenizer, shown_special)
        eos = {*decoder.eos_token_ids, *(() if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,))}
        self.limits = ModelLimits(ctx, decoder.vocab_size, frozenset(eos))
        self._decoder: Decoder[Any] = decoder
        self._prefill_chunk_len = prefill_chunk_len
        self._clock = clock
        self._changed = threading.Condition()  # guards the scheduler, the totals and the two flags
        self._scheduler: Scheduler[_Served] = Scheduler(max_active, max_queue)
        self._stats = EngineStats()
        self._closing = False
        self._dead = False
        # The first cache now rather than with the first request: a context that cannot be is told at once.
        self._free_caches: list[Cache] = [decoder.new_cache(ctx)]
        self._worker = threading.Thread(target=self._run, name="engine", daemon=True)
        self._worker.start()

    def submit(self, request: GenerationRequest) -> Generation:
        """Queue a request. Raises `InvalidRequest`, `ContextOverflow`, `QueueFull`, `EngineClosed`; never blocks."""
        self.check(request)
        generation = Generation(request, self._cancelled)
        progress = Progress(request, self.limits, self.token_bytes, self._prefill_chunk_len)
        served = _Served(generation, progress, self._clock(), metrics=generation.metrics)
        with self._changed:
            if self._closing or self._dead:
                raise EngineClosed("the engine takes no more requests" + (": its worker failed" if self._dead else ""))
            self._scheduler.add(served)
            self._changed.notify_all()
        return generation

    def check(self, request: GenerationRequest) -> None:
        """Whether this model can serve it: raises `InvalidRequest` or `ContextOverflow`."""
        vocab_size, ctx_len = self.limits.vocab_size, self.limits.ctx_len
        wanted = request.sampling.max_tokens
        for prompt in request.prompts:
            strange = next((token for token in prompt if not 0 <= token < vocab_size), None)
            if strange is not None:
                raise InvalidRequest("prompts", f"token id {strange} is not in the vocabulary of {vocab_size} tokens")
            completion_len = 1 if wanted is None else wanted
            if len(prompt) + completion_len > ctx_len:
                raise ContextOverflow(ctx_len, len(prompt), completion_len)
        strange = next((token for token in request.sampling.logit_bias if not 0 <= token < vocab_size), None)
        if strange is not None:
            raise InvalidRequest("logit_bias", f"token id {strange} is not in the vocabulary of {vocab_size} tokens")

    def stats(self) -> EngineStats:
        with self._changed:
            return replace(self._stats, num_active=self._scheduler.num_active, num_waiting=self._scheduler.num_waiting)

    @property
    def healthy(self) -> bool:
        """Whether a request submitted now would be worked on."""
        with self._changed:
            return not self._closing and not self._dead

    def cancel_all(self, reason: str) -> int:
        """End every request that is here now; how many they were."""
        with self._changed:
            generations = [served.generation for served in self._scheduler.items]
        for generation in generations:
            generation.cancel(reason)
        return len(generations)

    def close(self) -> None:
        """End every request and the worker. The decoder is the caller's again."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self.cancel_all("the engine was closed")
        self._worker.join(_CLOSE_S)
        if self._worker.is_alive():
            log.warning("the engine's forward did not return within %g s; its thread is left behind", _CLOSE_S)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # The rest runs in the worker, but for _cancelled.

    def _cancelled(self, generation: Generation) -> None:
        """Who waits leaves the queue at once; who is being served is stopped by the worker before the next forward."""
        with self._changed:
            served = next((item for item in self._scheduler.items if item.generation is generation), None)
            waits = served is not None and self._scheduler.withdraw(served)
            if waits:
                self._stats = replace(self._stats, num_cancelled=self._stats.num_cancelled + 1)
        if served is not None and waits:
            generation.cut(served.metrics)

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closing or self._scheduler.num_items)
                    turns = self._scheduler.next_round()
                    if self._closing and not turns:
                        return
                for served in turns:
                    self._turn(served)
        except BaseException:
            log.exception("the engine's worker failed; no more requests are served")
            with self._changed:
                self._dead = True
                orphans = self._scheduler.items
            for served in orphans:
                self._retire(served, InternalError("the engine's worker failed; see the server's log"))

    def _turn(self, served: _Served) -> None:
        """One step of one request; whatever goes wrong in it is the end of that request alone."""
        try:
            if served.generation.cancel_reason is not None:
                self._retire(served, None)
                return
            events = self._step(served)
            if served.progress.done:
                self._retire(served, None, events)
            else:
                served.generation.put(events, served.metrics)
        except DuckfleetError as error:
            self._retire(served, error)
        except Exception as error:
            log.exception("a forward failed")
            self._retire(served, InternalError(f"the forward failed: {type(error).__name__}: {error}"))

    def _step(self, served: _Served) -> list[TokenEvent]:
        if served.cache is None:
            served.metrics = replace(served.metrics, queue_s=self._clock() - served.submitted_at)
            served.cache = (
                self._free_caches.pop() if self._free_caches else self._decoder.new_cache(self.limits.ctx_len)
            )
        feed = served.progress.next_feed()
        started_at = self._clock()
        logits = self._forward(feed, served.cache)
        self._account(served, self._clock() - started_at)
        events = served.progress.accept(feed, logits)
        drawn_at, num_drawn = self._clock(), sum(event.token_id is not None for event in events)
        if num_drawn:
            if served.first_token_at is None:
                served.first_token_at = drawn_at
            served.metrics = replace(
                served.metrics,
                completion_tokens=served.metrics.completion_tokens + num_drawn,
                ttft_s=served.first_token_at - served.submitted_at,
                decode_s=drawn_at - served.first_token_at,
            )
        return events

    def _forward(self, feed: Feed, cache: Cache) -> F32:
        if cache.length != feed.cache_len:
            cache.truncate(feed.cache_len)
        logits: F32 = self._decoder.forward(feed.tokens, cache, all_logits=feed.all_logits).float().cpu().numpy()
        return logits

    def _account(self, served: _Served, forward_s: float) -> None:
        timing, metrics = self._decoder.timing, served.metrics
        served.metrics = replace(
            metrics,
            num_forwards=metrics.num_forwards + 1,
            forward_s=metrics.forward_s + forward_s,
            prepare_us=metrics.prepare_us + timing.prepare_us,
            send_us=metrics.send_us + timing.send_us,
            wait_us=metrics.wait_us + timing.wait_us,
            fetch_us=metrics.fetch_us + timing.fetch_us,
        )
        with self._changed:
            stats = self._stats
            self._stats = replace(
                stats,
                num_forwards=stats.num_forwards + 1,
                forward_s=stats.forward_s + forward_s,
                prepare_us=stats.prepare_us + timing.prepare_us,
                send_us=stats.send_us + timing.send_us,
                wait_us=stats.wait_us + timing.wait_us,
                fetch_us=stats.fetch_us + timing.fetch_us,
            )

    def _retire(self, served: _Served, error: BaseException | None, events: list[TokenEvent] | None = None) -> None:
        """Give its place free, then tell the client. A cache that an error may have left in disorder is dropped."""
        if served.cache is not None and error is None:
            self._free_caches.append(served.cache)
        with self._changed:
            if not self._scheduler.remove(served):
                return
            stats = self._stats
            if error is not None:
                self._stats = replace(stats, num_failed=stats.num_failed + 1)
            elif served.progress.done:
                self._stats = replace(stats, num_finished=stats.num_finished + 1)
            else:
                self._stats = replace(stats, num_cancelled=stats.num_cancelled + 1)
        if events:
            served.generation.put(events, served.metrics)
        if error is not None:
            served.generation.fail(error, served.metrics)
        elif served.progress.done:
            served.generation.finish(served.metrics)
        else:
            served.generation.cut(served.metrics)
