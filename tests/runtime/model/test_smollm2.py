"""The real model, end to end in this process: four slices through the ducks' kernels against `transformers`."""

import pytest
import torch

from duckfleet.inventory.plan import FORMATS
from duckfleet.runtime.fabric import LocalFabric
from duckfleet.runtime.model import ChunkStore, load_decoder, load_tokenizer, prepare
from duckfleet.runtime.model.evaluate import evaluate, texts
from duckfleet.runtime.model.reference import reference_model


@pytest.fixture(scope="module")
def chunks(tmp_path_factory):
    return tmp_path_factory.mktemp("chunks")


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    return load_tokenizer(smollm2)


def greedy(decoder, prompt, num_tokens):
    cache = decoder.new_cache(len(prompt) + num_tokens)
    logits, said = decoder.forward(prompt, cache), []
    while len(said) < num_tokens:
        said.append(int(logits[-1].argmax()))
        if said[-1] in decoder.eos_token_ids:
            break
        logits = decoder.forward(said[-1:], cache)
    return said


@pytest.mark.parametrize("format", FORMATS)
def test_logits_and_greedy_tokens_equal_those_of_transformers(smollm2_in_memory, tokenizer, chunks, format):
    plan = prepare(smollm2_in_memory, "smollm2", chunks, tp=4, format=format)
    decoder = load_decoder(smollm2_in_memory, LocalFabric(plan, ChunkStore(chunks).read))
    reference = reference_model(smollm2_in_memory, format)
    ids = tokenizer.encode(texts()["story"])[:64]
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(
        decoder.forward(ids, decoder.new_cache(64), all_logits=True), expected, atol=2e-3, rtol=0
    )
    messages = [{"role": "user", "content": "Tell me about ducks."}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    theirs = reference.generate(torch.tensor([prompt]), max_new_tokens=32, do_sample=False)[0][len(prompt) :]
    assert greedy(decoder, prompt, 32) == theirs.tolist()


def test_the_cost_of_each_format_is_small_and_ordered(smollm2_in_memory, tokenizer, chunks):
    short = {"story": texts()["story"][:300]}
    rows = {r.format: r for r in evaluate(smollm2_in_memory, tokenizer, "smollm2", chunks, ("bf16", "e4m3"), on=short)}
    assert list(rows) == ["unrounded", "bf16", "e4m3"]
    assert rows["unrounded"].kl_max == 0 and rows["unrounded"].top1_agreement == 1
    assert rows["bf16"].kl_mean < 1e-4 < rows["e4m3"].kl_mean < 0.05
    assert rows["e4m3"].perplexity == pytest.approx(rows["unrounded"].perplexity, rel=0.05)
