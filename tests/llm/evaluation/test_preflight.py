"""Each silent fault is planted, and found."""

import json
from dataclasses import replace

import pytest
import torch
from llm_families import make, metaspace
from torch.nn import functional as F

from llm_bench.data.encode import encode
from llm_bench.data.folder import read_split
from llm_bench.evaluation.plain_forward import choose_side
from llm_bench.evaluation.preflight import (
    KNOWN_FILE,
    KNOWN_TEXT,
    known_loss,
    of_two_lengths,
    preflight,
    write_known,
)
from llm_bench.models import loading
from llm_bench.tasks import get_task


def some(model, name, folder):
    task = get_task(name, model.kind)
    return task, [encode(model, task, task.make(row)) for row in read_split(folder, task, "test")[:4]]


def test_the_known_loss_of_a_causal_model_is_that_of_a_plain_forward():
    model = make("gpt2")
    ids = torch.tensor([model.tokenizer(KNOWN_TEXT)["input_ids"]])
    with torch.no_grad():
        logits = model.module(input_ids=ids).logits
    loss, bits = known_loss(model)
    expected = F.cross_entropy(logits[0, :-1], ids[0, 1:]).item()
    assert loss == pytest.approx(expected, rel=1e-9)
    assert bits == pytest.approx(expected * (ids.shape[1] - 1) / len(KNOWN_TEXT) / 0.6931471805599453)


def test_the_known_loss_of_a_masked_model_masks_one_token_at_a_time():
    model = make("roberta")
    ids = model.tokenizer(KNOWN_TEXT)["input_ids"]
    losses = []
    for place in range(1, len(ids) - 1, 7):
        masked = torch.tensor([ids])
        masked[0, place] = model.tokenizer.mask_token_id
        with torch.no_grad():
            losses.append(
                F.cross_entropy(model.module(input_ids=masked).logits[0, place], torch.tensor(ids[place])).item()
            )
    assert known_loss(model)[0] == pytest.approx(sum(losses) / len(losses), rel=1e-9)


@pytest.mark.parametrize("family", ["opt", "llama", "gemma3_text", "roberta", "bert"])
def test_a_sound_model_passes_and_is_described(family, toy_data):
    model = make(family)
    task, encoded = some(model, "sst2", toy_data)
    report = preflight(model, task, encoded, pretrained=False)
    assert report["first_token"] == list(model.before)
    assert [len(tokens) for tokens in report["option_tokens"]] == [len(option) for option in encoded[0].options]
    assert report["share_cut"] == report["share_merged"] == 0
    json.dumps(report)


def test_a_forgotten_first_token_is_found_for_families_that_need_it(toy_data):
    model = make("gemma3_text")
    broken = loading.wrap(model.module, metaspace(bos=False), "causal", "gemma")
    task, encoded = some(broken, "sst2", toy_data)
    with pytest.raises(ValueError, match="gemma was trained with the first token 2, but its tokenizer puts nothing"):
        preflight(broken, task, encoded, pretrained=False)


def test_a_doubled_first_token_is_found(toy_data):
    model = make("opt")
    task, encoded = some(model, "sst2", toy_data)
    doubled = [replace(e, rows=tuple((2, *row) for row in e.rows)) for e in encoded]
    with pytest.raises(ValueError, match="does not begin with the first token 2 exactly once"):
        preflight(model, task, doubled, pretrained=False)


def test_a_tokenizer_that_does_not_fit_the_weights_is_found_by_the_noted_loss(toy_data, tmp_path):
    model = make("opt")
    task, encoded = some(model, "sst2", toy_data)
    noted = write_known(model, tmp_path)
    assert preflight(model, task, encoded, source=tmp_path)["known_text_loss"] == pytest.approx(noted)
    (tmp_path / KNOWN_FILE).write_text(json.dumps({"text": KNOWN_TEXT, "loss": noted - 0.02}))
    with pytest.raises(ValueError, match=r"the loss of the known text is .* says .*read otherwise"):
        preflight(model, task, encoded, source=tmp_path)


def test_random_weights_are_found(toy_data):
    model = make("opt")
    task, encoded = some(model, "sst2", toy_data)
    with pytest.raises(ValueError, match="bits a character, more than guessing letters"):
        preflight(model, task, encoded)


def test_random_weights_over_few_long_tokens_are_found(toy_data, monkeypatch):
    """Their bits a character are few, since a token has many."""
    model = make("gpt2")
    task, encoded = some(model, "sst2", toy_data)
    monkeypatch.setattr("llm_bench.evaluation.preflight.LETTERS_BITS", 99.0)
    with pytest.raises(ValueError, match=r"a model that does not look at it, 6\.15 or more: the tokenizer"):
        preflight(model, task, encoded)
    monkeypatch.setattr("llm_bench.evaluation.preflight.known_loss", lambda m, text: (6.1, 2.0))
    preflight(model, task, encoded)


@pytest.mark.parametrize("family", ["opt", "roberta"])
def test_a_model_of_few_positions_is_shown_what_fits(family):
    model = make(family, positions=24)
    assert model.max_length == 24
    assert known_loss(model)[0] > 0
    assert choose_side(model, of_two_lengths(model, list(range(10, 60))))["padding_side"] == model.side


def test_a_first_token_that_the_tokenizer_leaves_out_is_found_by_its_loss(toy_data, monkeypatch):
    """A llama kind may or may not have a first token: the loss with it in front decides."""
    model = loading.wrap(make("llama").module, metaspace(bos=False), "causal", "llama")
    task, encoded = some(model, "sst2", toy_data)
    losses = {(): (3.0, 2.0), (2,): (2.5, 1.7)}
    monkeypatch.setattr("llm_bench.evaluation.preflight.known_loss", lambda m, text: losses[m.before])
    with pytest.raises(ValueError, match=r"without it 3\.00, and the tokenizer leaves it out"):
        preflight(model, task, encoded)
    losses[(2,)] = (2.9, 1.9)
    preflight(model, task, encoded)


def saved(model, folder):
    model.module.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", ["opt", "roberta"])
def test_a_saved_folder_loads_to_the_same_scores(family, tmp_path, toy_data):
    model = make(family, dtype=torch.float32)
    folder = saved(model, tmp_path / "my-model")
    again = loading.load(folder, model.kind)
    assert (again.name, again.before, again.after) == ("my-model", model.before, model.after)
    assert again.fingerprint == loading.load(folder, model.kind).fingerprint
    assert known_loss(again) == known_loss(model)
    assert not again.module.training
    assert loading.load(folder, model.kind, dtype="bfloat16").module.dtype == torch.bfloat16
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    name = next(iter(weights))
    weights[name] = weights[name] + 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert loading.load(folder, model.kind).fingerprint != again.fingerprint


def test_bad_models_are_clear_errors(tmp_path):
    opt = saved(make("opt", dtype=torch.float32), tmp_path / "opt")
    roberta = saved(make("roberta", dtype=torch.float32), tmp_path / "roberta")
    with pytest.raises(ValueError, match="is a OPTForCausalLM, which is no masked language model"):
        loading.load(opt, "masked")
    with pytest.raises(ValueError, match="is a RobertaForMaskedLM, which is no causal language model"):
        loading.load(roberta, "causal")
    with pytest.raises(ValueError, match=r"dtype must be one of float32, .*quantised weights cannot"):
        loading.load(opt, "causal", dtype="int4")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="torch sees no CUDA device"):
            loading.load(opt, "causal", device="cuda")
    (opt / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"opt has no tokenizer \(tokenizer.json"):
        loading.load(opt, "causal")
    (roberta / "config.json").unlink()
    with pytest.raises(ValueError, match=r"roberta has no config.json"):
        loading.load(roberta, "masked")
    with pytest.raises(FileNotFoundError, match="there is no model folder"):
        loading.load(tmp_path / "none", "causal")
    with pytest.raises(FileNotFoundError, match="not a folder here, and the Hub does not give it"):
        loading.load("nobody/nothing", "causal")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "opt"', r"config\.json is not JSON \(.*copy or download it anew"),
        ("[1]", r"config\.json is a list; it must be an object"),
        ('{"model_type": "opt9"}', r"config\.json has the model_type 'opt9', which transformers [0-9.]+ does not know"),
        ('{"model_type": "opt", "vocab_size": "many"}', r"config\.json is no configuration of opt \(.*anew"),
        ('{"model_type": "opt9", "auto_map": {}}', r"needs Python files of its own \(auto_map"),
    ],
)
def test_bad_configurations_are_named(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        loading.kind_of(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_encoder_without_head_is_refused(tmp_path):
    """As MiniLM: the masked-language head would be drawn at random, silently."""
    import transformers as tf

    bert = make("bert", dtype=torch.float32)
    tf.BertModel(bert.module.config).save_pretrained(tmp_path)
    bert.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has no weights for cls\.predictions"):
        loading.load(tmp_path, "masked")
