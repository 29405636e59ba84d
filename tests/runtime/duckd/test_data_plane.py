"""Requests of every shape get the right bits from a real duckd."""

from __future__ import annotations

import random

import numpy as np
import pytest

from duckfleet.runtime.wire import WHOLE_SLICE, DataKind, Range, TagAlgorithm
from tests.runtime.duckd.conftest import Served, serve
from tests.runtime.duckd.duck_process import DuckProcess, wait_until
from tests.runtime.duckd.small_model import SmallModel


def routes(served: Served, num_tokens: int, top_k: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(num_tokens)
    experts = np.stack(
        [np.sort(rng.choice(served.model.num_experts, top_k, replace=False)) for _ in range(num_tokens)]
    ).astype(np.uint32)
    return experts, rng.random((num_tokens, top_k), np.float32)


@pytest.mark.parametrize("num_tokens", [1, 7, 128])
def test_dense_layer(served: Served, num_tokens: int) -> None:
    x, step = served.x(num_tokens), served.next_step()
    served.host.send(served.host.fragments(step, 0, x))
    reply = served.host.reply(step, served.model.rank, WHOLE_SLICE)
    assert np.array_equal(reply, served.oracle.whole(0, served.model.rank, x))


@pytest.mark.parametrize("num_tokens", [1, 33])
def test_expert_layer(served: Served, num_tokens: int) -> None:
    x, step = served.x(num_tokens), served.next_step()
    experts, weights = routes(served, num_tokens)
    served.host.send(served.host.fragments(step, 1, x, experts, weights))
    reply = served.host.reply(step, served.model.rank, WHOLE_SLICE)
    assert np.array_equal(reply, served.oracle.whole(1, served.model.rank, x, experts, weights))


@pytest.mark.parametrize("format", ["f32", "bf16", "e4m3", "fp9"])
def test_every_format(keyed_duck: DuckProcess, format: str) -> None:
    serve(keyed_duck, SmallModel(format=format)).assert_good()


@pytest.mark.parametrize("algorithm", list(TagAlgorithm))
def test_every_tag_algorithm(keyed_duck: DuckProcess, algorithm: TagAlgorithm) -> None:
    with keyed_duck.control() as control:
        if algorithm not in control.identity().tag_algorithms:
            pytest.skip(f"this CPU cannot compute {algorithm.name}")
    served = serve(keyed_duck, algorithm=algorithm)
    served.assert_good()
    assert served.host.num_bad_tags == 0


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_narrow_activations(keyed_duck: DuckProcess, dtype: str) -> None:
    served = serve(keyed_duck, wire_dtype=dtype)
    x, step = served.x(3), served.next_step()
    if dtype == "f16":
        x = x.astype(np.float16).astype(np.float32)
        x[0, :4] = [6e-8, -6e-8, 65504.0, -0.0]  # subnormals and the largest
        x = x.astype(np.float16).astype(np.float32)
    else:
        x = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    served.host.send(served.host.fragments(step, 0, x))
    reply = served.host.reply(step, served.model.rank, WHOLE_SLICE)
    assert np.array_equal(reply, served.oracle.whole(0, served.model.rank, x))


def test_parts_on_request(served: Served) -> None:
    """A request with a slice and a mask is answered with one vector a part."""
    x, step, rank = served.x(2), served.next_step(), served.model.rank
    served.host.send(served.host.fragments(step, 0, x, slice=rank, part=0b11))
    for part in range(2):
        reply = served.host.reply(step, rank, part)
        assert np.array_equal(reply, served.oracle.part(0, rank, part, x, None, None))


def test_another_ranks_slice(keyed_duck: DuckProcess) -> None:
    """A duck that holds a part of another slice computes it beside its own, in the same step."""
    model = SmallModel()
    chunks = [*model.chunks(), model.chunk(0, 1, slice_=2)]

    class WithReplica(SmallModel):
        def chunks(self) -> list[bytes]:
            return chunks

    served = serve(keyed_duck, WithReplica())
    x, step = served.x(), served.next_step()
    served.host.send(served.host.fragments(step, 0, x))
    served.host.send(served.host.fragments(step, 0, x, slice=2, part=0b10, rank=model.rank))
    wanted = {
        (model.rank, WHOLE_SLICE): served.oracle.whole(0, model.rank, x),
        (2, 1): served.oracle.part(0, 2, 1, x, None, None),
    }
    got = {}
    pieces: dict[tuple[int, int], dict[int, bytes]] = {}
    while len(got) < 2:
        header, payload = served.host.receive_kind(DataKind.REPLY)
        vector = pieces.setdefault((header.slice, header.part), {})
        vector[header.offset] = payload
        if sum(map(len, vector.values())) == header.message_bytes:
            got[header.slice, header.part] = np.frombuffer(b"".join(vector[o] for o in sorted(vector)), np.float32)
    for place, vector in wanted.items():
        assert np.array_equal(got[place], vector.ravel())


def test_both_lanes(served: Served) -> None:
    x0, x1 = served.x(5), -served.x(4)
    step = served.next_step()
    fragments = served.host.fragments(step, 0, x0) + served.host.fragments(step + 100, 0, x1, lane=1)
    random.Random(5).shuffle(fragments)
    served.host.send(fragments)
    pieces: dict[int, dict[int, bytes]] = {0: {}, 1: {}}
    while any(sum(map(len, pieces[lane].values())) != x.nbytes for lane, x in enumerate((x0, x1))):
        header, payload = served.host.receive_kind(DataKind.REPLY)
        pieces[header.lane][header.offset] = payload
    for lane, x in enumerate((x0, x1)):
        message = b"".join(pieces[lane][offset] for offset in sorted(pieces[lane]))
        assert message == served.oracle.whole(0, served.model.rank, x).tobytes()


def test_shuffled_and_duplicated_fragments(served: Served) -> None:
    for seed in range(5):
        x, step = served.x(9), served.next_step()
        fragments = served.host.fragments(step, 0, x)
        assert len(fragments) > 3
        fragments = fragments + fragments[1:]
        random.Random(seed).shuffle(fragments)
        served.host.send(fragments)
        reply = served.host.reply(step, served.model.rank, WHOLE_SLICE)
        assert np.array_equal(reply, served.oracle.whole(0, served.model.rank, x))
    wait_until(lambda: served.drops()["duplicate_fragment"] > 0)


def test_overlapping_fragments(served: Served) -> None:
    """A retransmission may be cut differently from the first sending."""
    x, step = served.x(6), served.next_step()
    first = served.host.fragments(step, 0, x)
    served.host.fragment_bytes = 640
    second = served.host.fragments(step, 0, x)
    served.host.send(first[::2])
    served.host.send(second)
    reply = served.host.reply(step, served.model.rank, WHOLE_SLICE)
    assert np.array_equal(reply, served.oracle.whole(0, served.model.rank, x))


def test_missing_fragments_are_asked_for(served: Served) -> None:
    x, step = served.x(8), served.next_step()
    fragments = served.host.fragments(step, 0, x)
    missing = {2, 3, 7}
    served.host.send([f for i, f in enumerate(fragments) if i not in missing])
    header, payload = served.host.receive_kind(DataKind.NACK_REQUEST)
    assert (header.step, header.layer, header.rank) == (step, 0, served.model.rank)
    ranges = [Range.unpack(payload[i : i + 8]) for i in range(0, len(payload), 8)]
    size = served.host.fragment_bytes
    assert ranges == [Range(2 * size, 2 * size), Range(7 * size, size)]
    served.host.send([fragments[i] for i in missing])
    reply = served.host.reply(step, served.model.rank, WHOLE_SLICE)
    assert np.array_equal(reply, served.oracle.whole(0, served.model.rank, x))


def test_asking_backs_off(served: Served) -> None:
    """An unfinished request is asked for a bounded number of times, and the next one is served."""
    x, step = served.x(8), served.next_step()
    served.host.send(served.host.fragments(step, 0, x)[:-1])
    served.host.receive_kind(DataKind.NACK_REQUEST)
    served.host.receive_kind(DataKind.NACK_REQUEST)
    while served.host.receive(1.0) is not None:
        pass
    assert served.data_stats()["nacks_sent"] == 12
    served.assert_good()


def test_a_repeated_request_is_answered_again(served: Served) -> None:
    x, step = served.x(4), served.next_step()
    fragments = served.host.fragments(step, 0, x)
    served.host.send(fragments)
    first = served.host.reply(step, served.model.rank, WHOLE_SLICE)
    served.host.send(fragments)
    assert np.array_equal(served.host.reply(step, served.model.rank, WHOLE_SLICE), first)
    assert served.data_stats()["computed"] == 1


def test_nack_reply_resends_what_is_missing(served: Served) -> None:
    x, step, rank = served.x(8), served.next_step(), served.model.rank
    served.host.send(served.host.fragments(step, 0, x))
    whole = served.host.reply(step, rank, WHOLE_SLICE).tobytes()
    served.host.inbox.clear()
    served.host.nack_reply(step, 0, [Range(448, 448), Range(1344, 64)], rank, WHOLE_SLICE)
    for offset, size in ((448, 448), (1344, 64)):
        header, payload = served.host.receive_kind(DataKind.REPLY)
        assert (header.offset, header.fragment_bytes) == (offset, size)
        assert payload == whole[offset : offset + size]
    served.host.nack_reply(step, 0, [], rank, WHOLE_SLICE)
    assert served.host.reply(step, rank, WHOLE_SLICE).tobytes() == whole


def test_nack_reply_for_a_request_that_never_came(served: Served) -> None:
    step = served.next_step()
    served.host.nack_reply(step, 0, [], served.model.rank, WHOLE_SLICE)
    header, payload = served.host.receive_kind(DataKind.NACK_REQUEST)
    assert header.step == step
    assert Range.unpack(payload) == Range(0, 0xFFFFFFFF)
    wait_until(lambda: served.drops()["unknown_message"] == 1)  # counted after it was answered


def test_busy_while_computing(keyed_duck: DuckProcess) -> None:
    """A repetition that arrives while the request waits or is computed is answered with busy, then with the reply."""
    served = serve(keyed_duck, SmallModel(format="f32", hidden=4096))
    x, step = served.x(128), served.next_step()
    served.host.fragment_bytes = 65024 // 64 * 64
    served.host.reply_fragment_bytes = 448
    fragments = served.host.fragments(step, 0, x)
    served.host.send(fragments)
    header = None
    for _ in range(200):
        served.host.send(fragments[:1])
        received = served.host.receive(0.05)
        if received is not None and received[0].kind in (DataKind.BUSY, DataKind.REPLY):
            header = received[0]
            break
    assert header is not None
    wait_until(lambda: served.data_stats()["computed"] == 1)
    if header.kind == DataKind.BUSY:
        assert (header.step, header.rank, header.fragment_bytes) == (step, served.model.rank, 0)


def test_paced_replies(keyed_duck: DuckProcess) -> None:
    served = serve(keyed_duck, pace_bytes_per_s=2_000_000)
    x, step = served.x(128), served.next_step()
    served.host.send(served.host.fragments(step, 0, x))
    reply = served.host.reply(step, served.model.rank, WHOLE_SLICE)
    assert np.array_equal(reply, served.oracle.whole(0, served.model.rank, x))


def test_echo_in_and_outside_a_session(served: Served) -> None:
    payload = bytes(range(200))
    inside = served.host.header(DataKind.ECHO, step=5, message_bytes=200, fragment_bytes=200)
    served.host.send([(inside, payload)])
    header, returned = served.host.receive_kind(DataKind.ECHO_REPLY)
    assert (header.step, returned) == (5, payload)
    outside = served.host.header(DataKind.ECHO, session=0, step=6, message_bytes=200, fragment_bytes=200)
    served.host.send_raw(outside.pack() + payload)
    served.host.socket.settimeout(20)
    datagram, _ = served.host.socket.recvfrom(65536)
    assert datagram[80:] == payload
    assert served.data_stats()["echoes"] == 2  # counted before they are answered


def test_threads_give_the_same_bits(tmp_path: object) -> None:
    import pathlib

    with DuckProcess(pathlib.Path(str(tmp_path)), options=("--threads", "3")) as duck:
        serve(duck, algorithm=TagAlgorithm.NONE).assert_good()


def test_times_and_bytes_are_counted(served: Served) -> None:
    served.assert_good()
    wait_until(lambda: served.data_stats()["replies"] == 1)  # counted after it was sent
    stats = served.data_stats()
    assert stats["requests"] == stats["computed"] == stats["replies"] == 1
    # fp9: 9 bits for each weight of gate, up and down, all of it read once
    weights = 3 * served.model.hidden * 32 * served.model.parts
    assert weights * 9 / 8 < stats["weight_bytes"] < weights * 9 / 8 * 1.5
    compute = stats["compute"]
    assert isinstance(compute, dict)
    assert 0 < compute["p50_us"] <= compute["max_us"]
