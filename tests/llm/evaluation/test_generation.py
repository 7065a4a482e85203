"""Greedy answers against a loop of full forwards, one prompt at a time and without caches."""

import pytest
import torch
from llm_families import make

from llm_bench.data.encode import encode
from llm_bench.data.folder import read_split
from llm_bench.evaluation.evaluate import evaluate
from llm_bench.evaluation.generation import bytes_of_a_token, generate
from llm_bench.tasks import get_task

TASK = get_task("squad", "causal")


def greedy(model, prompt, most):
    ids, text = list(prompt), ""
    for _ in range(most):
        with torch.no_grad():
            token = model.module(input_ids=torch.tensor([ids])).logits[0, -1].argmax().item()
        ids.append(token)
        text = model.tokenizer.decode(ids[len(prompt) :], skip_special_tokens=True)
        if token == model.tokenizer.eos_token_id or "\n" in text:
            break
    return text.split("\n")[0].strip()


@pytest.mark.parametrize("family", ["opt", "gpt2", "llama", "gemma3_text"])
def test_generation_equals_a_plain_greedy_loop(family, toy_data):
    model = make(family)
    prompts = [encode(model, TASK, TASK.make(row)).prompt for row in read_split(toy_data, TASK, "test")[:6]]
    expected = [greedy(model, prompt, 8) for prompt in prompts]
    assert generate(model, prompts, 8) == expected
    assert generate(model, prompts, 8, max_tokens=1) == expected, "one prompt a batch"
    assert generate(model, prompts[::-1], 8) == expected[::-1]


@pytest.mark.parametrize("family", ["opt", "gpt2", "llama", "gemma3_text"])
def test_what_a_token_keeps_is_what_the_cache_holds(family):
    model = make(family)
    with torch.no_grad():
        cache = model.module(input_ids=torch.tensor([[5, 6, 7]] * 2), use_cache=True).past_key_values
    held = sum(x.nbytes for layer in cache.layers for x in (layer.keys, layer.values))
    assert bytes_of_a_token(model) == held / 6


def test_generation_stops_at_a_newline_and_at_the_end_token():
    """Weights that always prefer one token."""
    model = make("opt", seed=3)
    head = model.module.get_output_embeddings()
    tokens = {"\n": model.tokenizer("\n", add_special_tokens=False)["input_ids"][0], "</s>": 2}
    prompt = model.tokenizer("Answer:")["input_ids"]
    steps = []
    handle = head.register_forward_hook(lambda module, inputs, output: steps.append(1))
    for token in tokens.values():
        forced = head.register_forward_hook(
            lambda module, inputs, output, token=token: torch.nn.functional.one_hot(
                torch.full(output.shape[:-1], token), output.shape[-1]
            ).to(output.dtype)
        )
        steps.clear()
        assert generate(model, [prompt], 20) == [""]
        assert len(steps) == 1
        forced.remove()
    handle.remove()


def test_a_models_own_sampling_defaults_are_not_used(toy_data):
    model = make("opt")
    prompts = [encode(model, TASK, TASK.make(row)).prompt for row in read_split(toy_data, TASK, "test")[:3]]
    expected = generate(model, prompts, 6)
    model.module.generation_config.do_sample = True
    model.module.generation_config.repetition_penalty = 50.0
    before = model.module.generation_config
    assert generate(model, prompts, 6) == expected
    assert model.module.generation_config is before


def test_f1_of_generated_answers(toy_data):
    model = make("opt")
    encoded = [encode(model, TASK, TASK.make(row)) for row in read_split(toy_data, TASK, "test")[:4]]
    report = evaluate(model, TASK, encoded)
    assert len(report.predictions) == 4
    assert 0 <= report.metric <= 1
    assert report.loss == report.option_loss > 0
