"""What is trained, where it begins, and that a zeroth-order step reaches all of it and nothing else."""

import numpy as np
import pytest
import torch
from llm_families import CAUSAL, MASKED, make

from helene import MeZO
from llm_bench.data.batches import collate
from llm_bench.data.encode import encode
from llm_bench.data.folder import read_split
from llm_bench.evaluation.evaluate import score
from llm_bench.evaluation.scoring import classification_loss
from llm_bench.models.attention import Prefix
from llm_bench.models.loading import num_parameters
from llm_bench.models.tuning import Tuning, prepare, trained
from llm_bench.models.tuning.base import generator
from llm_bench.tasks import get_task


def examples(model, folder, count=8):
    task = get_task("sst2", model.kind)
    return [encode(model, task, task.make(row)) for row in read_split(folder, task, "test")[:count]]


def difference(a, b):
    return max(np.abs(x - y).max() for x, y in zip(a.means, b.means, strict=True))


def bits(module):
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("family", CAUSAL + MASKED)
def test_lora_begins_at_the_model_itself_and_trains_adapters_alone(family, toy_data):
    model = make(family)
    encoded = examples(model, toy_data)
    before = score(model, encoded)
    reset = prepare(model, Tuning("lora", rank=2))
    assert difference(score(model, encoded), before) == 0
    names = [name for name, _ in trained(model.module)]
    assert names
    assert all("lora_" in name for name in names)
    shapes = [p.shape for name, p in trained(model.module) if "lora_A" in name]
    assert all(shape[0] == 2 for shape in shapes)
    first = bits(model.module)
    reset(1)
    assert not same(bits(model.module), first)
    reset(0)
    assert same(bits(model.module), first)


def test_lora_spans_query_and_value_with_scale_alpha_over_rank(toy_data):
    """W + (alpha / r) B A, put in by hand."""
    model, plain = make("opt"), make("opt")
    prepare(model, Tuning("lora", rank=4, alpha=12.0))
    modules = {name for name, _ in trained(model.module)}
    assert {name.split(".")[-4] for name in modules} == {"q_proj", "v_proj"}
    torch.manual_seed(0)
    weights = dict(model.module.named_parameters())
    target = dict(plain.module.named_parameters())
    for name in modules:
        if "lora_B" in name:
            weights[name].data.normal_(0, 0.3)
            stem = name.split(".lora_B")[0]
            down = weights[f"{stem}.lora_A.default.weight"]
            target[f"{stem}.weight"].data += 12.0 / 4 * weights[name].data @ down.data
    encoded = examples(model, toy_data)
    assert difference(score(model, encoded), score(plain, encoded)) < 1e-12


@pytest.mark.parametrize("family", ["opt", "gpt2", "llama", "gemma3_text"])
def test_a_fresh_prefix_acts_as_the_random_tokens_whose_activations_it_is(family):
    """In a causal model, tokens in front at positions 0 to 4, the text's own positions counted from 0 again."""
    model = make(family)
    length, text = 5, torch.tensor([model.tokenizer("the film is funny")["input_ids"]])
    from llm_bench.models.tuning.base import generator

    vocabulary = model.module.config.vocab_size
    tokens = torch.randint(vocabulary, (1, length), generator=generator(3, purpose=2))
    places = torch.cat([torch.arange(length), torch.arange(text.shape[1])])[None]
    both = torch.cat([tokens, text], dim=1)
    with torch.no_grad():
        mask = torch.ones_like(both)
        expected = model.module(input_ids=both, position_ids=places, attention_mask=mask).logits[:, length:]
        prepare(model, Tuning("prefix", length=length))(3)
        found = model.module(input_ids=text, attention_mask=torch.ones_like(text)).logits
        without_mask = model.module(input_ids=text).logits
    # rotary tables are float32: a few roundings of 2^-24 on logits of size one
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(without_mask, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("family", CAUSAL + MASKED)
def test_prefixes_are_all_that_is_trained_and_batches_do_not_show(family, toy_data):
    model = make(family)
    encoded = examples(model, toy_data)
    plain = score(model, encoded)
    reset = prepare(model, Tuning("prefix"))
    assert num_parameters(model.module)["trained"] == sum(p.numel() for _, p in trained(model.module))
    assert all(".prefix." in name for name, _ in trained(model.module))
    assert all(p.shape[1] == 5 for _, p in trained(model.module))
    together, alone = score(model, encoded), score(model, encoded, max_rows=1)
    assert difference(together, plain) > 1e-3
    assert difference(together, alone) < 1e-5
    first = bits(model.module)
    reset(1)
    assert not same(bits(model.module), first)
    reset(0)
    assert same(bits(model.module), first)


@pytest.mark.parametrize("family", ["gpt2", "gemma3_text"])
def test_generation_sees_the_prefix(family, toy_data):
    """Cached decoding against full forwards, with a prefix."""
    from llm_bench.evaluation.generation import generate
    from tests.llm.evaluation.test_generation import greedy

    model = make(family)
    prompts = [model.tokenizer(text)["input_ids"] for text in ("the film", "Anna is in the")]
    without = generate(model, prompts, 6)
    prepare(model, Tuning("prefix"))
    with_prefix = generate(model, prompts, 6)
    assert with_prefix == [greedy(model, prompt, 6) for prompt in prompts]
    assert with_prefix != without


@pytest.mark.parametrize("tuning", ["full", "lora", "prefix"])
@pytest.mark.parametrize("family", ["opt", "gemma3_text", "roberta"])
def test_a_step_moves_all_that_is_trained_and_nothing_else_and_reset_undoes_it(tuning, family, toy_data):
    model = make(family, dtype=torch.float32)
    reset = prepare(model, Tuning(tuning))
    batch = collate(examples(model, toy_data), model.pad_id, "left", labels=True)
    before = bits(model.module)
    optimizer = MeZO(trained(model.module), lr=1e-2, eps=1e-3, model=model.module)
    for _ in range(2):  # LoRA's A has no effect while B is 0, yet z moves it from the first step on
        optimizer.step(lambda: classification_loss(model.module, batch))
    after = bits(model.module)
    names = {name for name, _ in trained(model.module)}
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert moved <= names
    # position rows that no batch uses move as well: a direction spans all parameters
    assert moved == names
    reset(0)
    assert same(bits(model.module), before)


def test_adapters_of_a_16_bit_model_are_float32(toy_data):
    for tuning in ("lora", "prefix"):
        model = make("opt", dtype=torch.bfloat16)
        prepare(model, Tuning(tuning))
        assert {p.dtype for _, p in trained(model.module)} == {torch.float32}
        assert score(model, examples(model, toy_data, 2))


def test_every_seed_of_a_run_has_a_generator():
    """And those of before the same: its state is that of the sum."""
    torch.testing.assert_close(generator(3, 2).get_state(), torch.Generator().manual_seed(3002).get_state())
    assert not torch.equal(generator(2**62, 2).get_state(), generator(2**64 - 1, 2).get_state())


def test_bad_tunings_are_errors():
    with pytest.raises(ValueError, match="tuning must be one of full, lora, prefix, got 'bitfit'"):
        Tuning("bitfit")
    with pytest.raises(ValueError, match="rank must be positive, got 0"):
        Tuning("lora", rank=0)
    model = make("opt")
    for layer in model.module.model.decoder.layers:
        layer.self_attn = torch.nn.Identity()
    with pytest.raises(ValueError, match="no query and value projections of a known name"):
        prepare(model, Tuning("lora"))


def test_a_prefix_on_attention_that_ignores_it_is_an_error(monkeypatch):
    model = make("opt")
    model.module.config._attn_implementation = "eager"
    with pytest.raises(ValueError, match="does not call the attention function that was set"):
        prepare(model, Tuning("prefix"))


def test_a_prefix_is_read_in_its_own_forward():
    """So that it can be perturbed module by module."""
    prefix = Prefix(torch.zeros(2, 3, 4), torch.ones(2, 3, 4))
    key, value = prefix(torch.ones(5, 2, 7, 4), torch.zeros(5, 2, 7, 4))
    assert key.shape == value.shape == (5, 2, 10, 4)
    assert key[:, :, :3].eq(0).all()
    assert value[:, :, :3].eq(1).all()
