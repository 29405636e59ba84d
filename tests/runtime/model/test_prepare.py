"""From a checkpoint to chunks: nothing lost, nothing twice, and a kill at any point costs only time."""

import hashlib
import json
import os
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest
from transformers import Glm4MoeConfig, LlamaConfig

from duckfleet.fp9_kernels import quantize
from duckfleet.inventory.plan import FORMATS
from duckfleet.runtime.decoder.tensor_names import FFN_MATRICES, expert_prefix
from duckfleet.runtime.model import BadCheckpoint, Checkpoint, ChunkStore, NoSpace, load_plans, prepare
from duckfleet.runtime.planner import check
from tests.runtime.model.chunk_reader import read_chunk
from tests.runtime.tiny_models import COMMON, QWEN3, ROUTED, random_model, save


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    # widths that are no multiples of 16, a dense layer, a shared expert
    config = Glm4MoeConfig(
        **{**QWEN3, **ROUTED, "hidden_size": 144, "intermediate_size": 200, "moe_intermediate_size": 40}
    )
    return Checkpoint.open(save(random_model(config), tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("tp", "parts", "weights"), [(1, 1, None), (3, 2, None), (4, 1, [3, 1, 1, 2])])
def test_every_weight_is_in_the_chunks_once(checkpoint, tmp_path, format, tp, parts, weights):
    plan = prepare(
        checkpoint, "tiny", tmp_path, tp=tp, parts=parts, weights=weights, format=format, max_chunk_bytes=60_000
    )
    shape = checkpoint.config.ffn_shape("tiny")
    assert check(plan, shape, even=weights is None) == []
    found = {}
    for chunk in plan.chunks:
        data = (tmp_path / chunk.digest).read_bytes()
        assert len(data) == chunk.num_bytes
        assert hashlib.blake2b(data, digest_size=32).hexdigest() == chunk.digest
        fmt, layer, slice_, part, hidden, intermediate, sections = read_chunk(data)
        assert (FORMATS[fmt], layer, slice_, part, hidden) == (format, chunk.layer, chunk.slice, chunk.part, 144)
        assert intermediate == shape.layers[layer].intermediate_of(chunk.sections[0].expert)
        for planned, s in zip(chunk.sections, sections, strict=True):
            assert (planned.expert, planned.col0, planned.num_cols) == (s.expert, s.col0, s.gate.shape[0])
            found.setdefault((layer, s.expert), []).append(s)
    for layer, ffn in enumerate(shape.layers):
        for expert, width in ffn.experts:
            pieces = sorted(found.pop((layer, expert)), key=lambda s: s.col0)
            for matrix in FFN_MATRICES:
                name = f"{expert_prefix(checkpoint.config, layer, expert)}{matrix}.weight"
                joined = np.concatenate(
                    [getattr(s, matrix.split("_")[0]) for s in pieces], axis=int(matrix == "down_proj")
                )
                kept, padding = np.split(joined, [width], axis=int(matrix == "down_proj"))
                expected = quantize(checkpoint.read(name).to_f32(), format).dequantize()
                np.testing.assert_array_equal(kept, expected, err_msg=name)
                assert not padding.any()
    assert not found
    assert load_plans(tmp_path) == [plan]
    assert not (tmp_path / "partial").exists()


def test_the_smallest_lossless_format_is_the_default(checkpoint, tmp_path):
    assert prepare(checkpoint, "tiny", tmp_path, tp=2).format == "f32"


def test_a_second_time_nothing_is_written(checkpoint, tmp_path):
    first = prepare(checkpoint, "tiny", tmp_path, tp=2, format="fp9")
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    calls = []
    assert prepare(checkpoint, "tiny", tmp_path, tp=2, format="fp9", progress=lambda *a: calls.append(a)) == first
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == before
    assert not calls


def test_a_lost_chunk_is_made_again(checkpoint, tmp_path):
    plan = prepare(checkpoint, "tiny", tmp_path, tp=2)
    (tmp_path / plan.chunks[3].digest).unlink()
    assert prepare(checkpoint, "tiny", tmp_path, tp=2) == plan
    assert ChunkStore(tmp_path).verify(plan) == []


def test_damage_is_found_by_digest(checkpoint, tmp_path):
    plan = prepare(checkpoint, "tiny", tmp_path, tp=2)
    victim = tmp_path / plan.chunks[1].digest
    data = bytearray(victim.read_bytes())
    data[100] ^= 1
    victim.write_bytes(data)
    assert ChunkStore(tmp_path).verify(plan) == [plan.chunks[1]]
    assert not victim.exists()
    with pytest.raises(BadCheckpoint, match=r"layer 0, slice 1.*prepare the model again"):
        ChunkStore(tmp_path).read(plan.chunks[1])


def test_the_model_digest_does_not_depend_on_the_cut_but_on_the_weights(checkpoint, tmp_path):
    plans = [prepare(checkpoint, "tiny", tmp_path, tp=tp, format=f) for tp, f in [(1, "f32"), (3, "fp9")]]
    assert plans[0].model_digest == plans[1].model_digest
    assert len(plans[0].model_digest) == 64
    other = Checkpoint.open(save(random_model(checkpoint_config(checkpoint), seed=5), tmp_path / "other"))
    assert prepare(other, "tiny", tmp_path, tp=1).model_digest != plans[0].model_digest


def checkpoint_config(checkpoint):
    raw = {k: v for k, v in checkpoint.raw_config.items() if k != "model_type"}
    return Glm4MoeConfig(**raw)


@pytest.mark.parametrize("calls_before_kill", [1, 2, 9, 30])
def test_a_killed_run_is_gone_on_with(checkpoint, tmp_path, calls_before_kill):
    expected = prepare(checkpoint, "tiny", tmp_path / "whole", tp=2, max_chunk_bytes=60_000)
    calls = []

    def kill_at(*_):
        calls.append(1)
        if len(calls) == calls_before_kill:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        prepare(checkpoint, "tiny", tmp_path / "torn", tp=2, max_chunk_bytes=60_000, progress=kill_at)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    kept = {p: p.stat().st_mtime_ns for p in (tmp_path / "torn").iterdir() if len(p.name) == 64}
    assert prepare(checkpoint, "tiny", tmp_path / "torn", tp=2, max_chunk_bytes=60_000) == expected
    assert all(p.stat().st_mtime_ns == t for p, t in kept.items())
    assert ChunkStore(tmp_path / "torn").verify(expected) == []


def test_a_journal_that_lies_is_not_believed(checkpoint, tmp_path):
    def stop_at_half(_, done, total):
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(checkpoint, "tiny", tmp_path, tp=2, max_chunk_bytes=60_000, progress=stop_at_half)
    chunks = [p for p in tmp_path.iterdir() if len(p.name) == 64]
    assert chunks
    chunks[0].write_bytes(b"torn")
    journal = next((tmp_path / "plans").glob("*.journal"))
    journal.write_text(journal.read_text() + '{"chunk": 9')
    plan = prepare(checkpoint, "tiny", tmp_path, tp=2, max_chunk_bytes=60_000)
    assert ChunkStore(tmp_path).verify(plan) == []


def test_a_nan_is_named(tmp_path):
    model = random_model(LlamaConfig(**COMMON))
    model.model.layers[1].mlp.up_proj.weight.data[7, 9] = float("nan")
    checkpoint = Checkpoint.open(save(model, tmp_path / "m"))
    with pytest.raises(BadCheckpoint, match=r"model\.layers\.1\.mlp\.up_proj\.weight, row 7, column 9"):
        prepare(checkpoint, "tiny", tmp_path / "chunks", tp=2, format="e4m3")


def test_a_full_disk_is_said_beforehand(tmp_path):
    with pytest.raises(NoSpace, match=r"GiB free, the model's chunks need .* GiB more"):
        ChunkStore(tmp_path / "chunks").begin(1 << 60, 0)


def test_chunks_no_plan_names_are_removed_on_request(checkpoint, tmp_path):
    old = prepare(checkpoint, "tiny", tmp_path, tp=2)
    new = prepare(checkpoint, "tiny", tmp_path, tp=3)
    freed = ChunkStore(tmp_path).remove_unused([new])
    assert freed > 0
    assert ChunkStore(tmp_path).verify(new) == []
    assert ChunkStore(tmp_path).verify(old) != []


LIMITED = """
import resource, sys
from pathlib import Path
from duckfleet.runtime.model import Checkpoint, prepare
checkpoint = Checkpoint.open(Path(sys.argv[1]))
checkpoint.tensors
used = next(int(l.split()[1]) << 10 for l in open("/proc/self/status") if l.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + (48 << 20),) * 2)
try:
    bytearray(64 << 20)
    sys.exit("the limit does not hold")
except MemoryError:
    pass
plan = prepare(checkpoint, "big", Path(sys.argv[2]), tp=4, format="e4m3")
print(len(plan.chunks))
"""


def test_a_model_far_larger_than_memory(tmp_path):
    """192 MiB of experts under 48 MiB: three matrices of one expert (2 MiB each in f32) and what they become."""
    hidden, width, experts = 1024, 512, 32
    config = {
        **QWEN3,
        "model_type": "qwen3_moe",
        "num_hidden_layers": 1,
        "hidden_size": hidden,
        "num_experts": experts,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": width,
    }
    folder = tmp_path / "big"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_zeros(folder)
    script = [sys.executable, "-c", LIMITED, str(folder), str(tmp_path / "chunks")]
    result = subprocess.run(
        script, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) >= 4
    assert sum(p.stat().st_size for p in folder.iterdir()) > 192 << 20


def write_zeros(folder):
    """A checkpoint of zeros as a sparse file, so that it costs no disk."""
    from duckfleet.runtime.decoder import decoder_config
    from duckfleet.runtime.decoder.tensor_names import ffn_tensors, host_tensors

    config = decoder_config(json.loads((folder / "config.json").read_text()))
    header, offset = {}, 0
    for name, shape in {**host_tensors(config), **ffn_tensors(config)}.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + offset)
