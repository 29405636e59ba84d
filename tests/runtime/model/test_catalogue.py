"""Names and shapes of published models."""

import pytest

from duckfleet.runtime.model import UnknownModel, catalogue
from duckfleet.runtime.model.catalogue import entry, find_entry
from duckfleet.runtime.planner import FfnShape


@pytest.mark.parametrize("name", ["smollm2", "SmolLM2-135M", "smollm2-135m-instruct"])
def test_a_model_has_several_names(name):
    assert entry(name).name == "smollm2-135m"


def test_an_unknown_name_is_answered_with_the_known_ones():
    assert find_entry("gpt-17") is None
    with pytest.raises(UnknownModel, match="qwen3-30b-a3b"):
        entry("gpt-17")


def test_names_and_aliases_are_unique():
    names = [n for e in catalogue().values() for n in (e.name, *e.aliases)]
    assert len(names) == len(set(names))
    assert all(n == n.lower() for n in names)


def test_the_shape_of_the_flagship():
    shape = entry("deepseek-v3.2").shape()
    assert (shape.hidden, shape.num_layers) == (7168, 62)
    assert shape.layers[2] == FfnShape(18432)
    assert shape.layers[3] == shape.layers[61] == FfnShape(2048, 256, 2048)
    assert entry("deepseek-v3.2").shape(with_mtp=False).num_layers == 61


def test_a_dense_shape():
    assert entry("smollm2").shape().layers == (FfnShape(1536),) * 30


def test_every_shape_can_be_planned():
    for e in catalogue().values():
        assert e.shape().num_units > 0
