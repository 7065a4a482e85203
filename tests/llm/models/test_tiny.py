"""The generated language and the models that learn it."""

import itertools
import json
import re

import pytest
import torch

from llm_bench.data.folder import read_split
from llm_bench.evaluation.evaluate import evaluate
from llm_bench.models import loading
from llm_bench.runs.session import Session
from llm_bench.tasks import get_task, task_names
from llm_bench.tiny import grammar
from llm_bench.tiny.pretrain import Recipe, pretrain, tiny_model
from llm_bench.tiny.tokenizer import make_tokenizer


def test_text_and_rows_are_functions_of_the_seed(tmp_path):
    first, again, other = (list(itertools.islice(grammar.documents(s), 50)) for s in (0, 0, 1))
    assert first == again != other
    a, b = grammar.write_data(tmp_path / "a", 3), grammar.write_data(tmp_path / "b", 3)
    for name in grammar.MAKERS:
        assert (a / name / "test.jsonl").read_bytes() == (b / name / "test.jsonl").read_bytes()


def test_labels_of_generated_reviews_are_those_of_their_words(toy_data):
    for row in read_split(toy_data, get_task("sst2", "masked"), "test"):
        words = set(row["sentence"].split())
        assert bool(words & set(grammar.PRAISE)) == (row["label"] == "positive")
        assert bool(words & set(grammar.BLAME)) == (row["label"] == "negative")


def test_generated_inferences_are_right(toy_data):
    for row in read_split(toy_data, get_task("cb", "causal"), "test"):
        stated = row["hypothesis"].removesuffix(".") in row["premise"]
        known = row["hypothesis"].split()[0] in row["premise"]
        assert (row["label"] == "entailment") == stated
        assert (row["label"] == "neutral") == (not known)


def test_splits_share_few_rows(toy_data):
    for name in ("sst2", "rte", "squad"):
        task = get_task(name, "causal")
        seen = [{str(sorted(r.items(), key=str)) for r in read_split(toy_data, task, s)} for s in ("train", "test")]
        assert len(seen[0] & seen[1]) <= 0.05 * len(seen[1])


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_every_label_word_is_one_token(kind):
    tokenizer = make_tokenizer(kind)
    for name in task_names("masked"):
        task = get_task(name, "masked")
        row = dict.fromkeys(task.fields, "x") | {task.labels.column: task.classes[0]}
        for word in task.make(row).options:
            assert len(tokenizer(f" {word}", add_special_tokens=False)["input_ids"]) == 1
    text = "the film is funny . It was great\nYes"
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    first = {"causal": [2], "masked": [0]}[kind]
    assert tokenizer("a")["input_ids"][:1] == first


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_a_model_is_made_once_and_loads_with_its_known_loss(kind, tmp_path):
    said = []
    recipe = Recipe(kind, steps=6, width=16, heads=2)
    folder = tiny_model(recipe, tmp_path, said.append)
    assert tiny_model(recipe, tmp_path, said.append) == folder
    assert len(said) == 1
    assert not list(tmp_path.glob(".*")), "nothing half made is left"
    assert re.fullmatch(rf"tiny-{kind}-[0-9a-f]{{12}}", folder.name)
    from llm_bench.evaluation.preflight import KNOWN_FILE, known_loss

    text = json.loads((folder / KNOWN_FILE).read_text())
    loss, _ = known_loss(loading.load(folder, kind), text["text"])
    assert loss == pytest.approx(text["loss"], abs=1e-6)


def test_pretraining_is_repeatable_and_leaves_the_global_generator_alone():
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    one = pretrain(Recipe("causal", steps=2, width=16, heads=2)).module.state_dict()
    assert torch.equal(torch.rand(1), expected)
    two = pretrain(Recipe("causal", steps=2, width=16, heads=2)).module.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.slow
def test_mezo_learns_from_chance_to_well_above_it(tmp_path_factory, toy_data):
    """Real fine-tuning on a CPU: from near one half to above 0.9, with a lower loss than one bias a class gives."""
    from llm_bench.runs.config import RunConfig
    from llm_bench.runs.environment import environment, resolved
    from llm_bench.runs.natural_step import denominator
    from llm_bench.runs.run import run

    folder = tiny_model(Recipe("causal", steps=300), tmp_path_factory.mktemp("cache"))
    env = environment(toy_data, models={"tiny": str(folder)}, pretrained=False)
    shared = {"model": "tiny", "kind": "causal", "task": "sst2", "num_train": 256, "num_dev": 50, "num_test": 200}

    def made(**more):
        return run(resolved(RunConfig(**shared, **more), env).to_dict(), env)

    def test(**more):
        return made(**more)["test"]

    zero, bias = test(method="zero-shot"), test(method="bias-only")
    mezo = test(method="mezo", lr=3e-3, eps=1e-3, steps=80, eval_every=40, batch_size=16)
    assert 0.4 <= zero["metric"] <= 0.6
    assert mezo["metric"] >= 0.9
    assert mezo["option_loss"] < bias["option_loss"] < zero["option_loss"] + 1e-6
    # HELENE at its natural step size, from MeZO's usual one here and twenty forwards.
    slope = made(method="mezo", lr=2e-3, eps=1e-3, steps=10, eval_every=10, role="measure")["slope"]
    lr = 0.1 * 2e-3 * denominator("helene", slope, 16)
    helene = test(method="helene", lr=lr, eps=1e-3, steps=80, eval_every=40, batch_size=16)
    assert helene["metric"] >= 0.9
    assert helene["option_loss"] < bias["option_loss"]


def test_sessions_and_evaluation_take_tiny_models(tmp_path, toy_data):
    from llm_bench.runs.config import RunConfig
    from llm_bench.runs.environment import environment

    folder = tiny_model(Recipe("masked", steps=2, width=16, heads=2), tmp_path)
    config = RunConfig(model="m", kind="masked", task="trec", method="zero-shot", k=8, num_test=20)
    opened = Session(config, environment(toy_data, models={"m": str(folder)}, pretrained=False))
    assert evaluate(opened.model, get_task("trec", "masked"), opened.test_tokens(config)).num_examples == 20
