"""What a request that says nothing of sampling gets: what the model's authors recommend."""

import pytest

from duckfleet.inventory.errors import OperatorError
from duckfleet.runtime.server import SamplingDefaults, ServerSettings


def test_a_generation_config_gives_defaults():
    published = {"temperature": 1, "top_p": 0.95, "do_sample": True, "eos_token_id": 1, "top_k": 20}
    assert SamplingDefaults.from_generation_config(published) == SamplingDefaults(1.0, 0.95, 20)
    assert SamplingDefaults.from_generation_config({"temperature": None}) == SamplingDefaults()


@pytest.mark.parametrize("value", ["hot", True, -1, 3, float("nan")])
def test_a_default_that_no_request_could_ask_for_is_refused(value):
    with pytest.raises(OperatorError, match="temperature"):
        SamplingDefaults.from_generation_config({"temperature": value})


def test_requests_that_leave_it_out_get_it(serve, llama):
    served = serve(llama.decoder, settings=ServerSettings(sampling=SamplingDefaults(temperature=0.0)))

    def said(**body):
        return served.chat(max_tokens=8, **body).json()["choices"][0]["message"]["content"]

    assert said() == said() == said(temperature=0) == said(temperature=None)
    assert len({said(temperature=2, seed=seed) for seed in range(4)}) > 1
