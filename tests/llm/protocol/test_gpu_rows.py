"""The call that makes real rows, on a CPU with tiny models in place of the real ones."""

import gzip
import hashlib
import sys
import tarfile
from contextlib import ExitStack

import pytest
import torch
from handmade import judged
from llm_families import make, wordpiece

from helene.lab.runs.records import write_jsonl
from helene.lab.runs.store import Record, Store, read_jsonl
from llm_bench.models import loading
from llm_bench.protocol import execute, presets
from llm_bench.tiny.pretrain import Recipe, tiny_model
from tools import gguf, gpu_rows, mlm_head, packed_models, side_by_side


def test_parts_are_joined_in_order_and_checked(tmp_path):
    whole = bytes(range(256)) * 100
    parts = []
    for i in range(3):
        parts.append(tmp_path / f"p.{i}")
        parts[-1].write_bytes(whole[i * 10_000 : (i + 1) * 10_000])
    digest = hashlib.sha256(whole).hexdigest()
    assert gguf.join(parts, tmp_path / "whole", digest).read_bytes() == whole
    with pytest.raises(ValueError, match="carry them again"):
        gguf.join(parts[::-1], tmp_path / "other", digest)
    assert not (tmp_path / "other").exists()
    with pytest.raises(FileNotFoundError, match=r"p\.9"):
        gguf.join([*parts, tmp_path / "p.9"], tmp_path / "other")


def test_a_packed_tokenizer_is_unpacked(tmp_path):
    source, target = tmp_path / "s", tmp_path / "t"
    source.mkdir(), target.mkdir()
    make("opt").tokenizer.save_pretrained(source)
    text = (source / "tokenizer.json").read_bytes()
    (source / "tokenizer.json.gz").write_bytes(gzip.compress(text))
    (source / "tokenizer.json").unlink()
    gguf.copy_tokenizer(source, target)
    assert (target / "tokenizer.json").read_bytes() == text
    with pytest.raises(FileNotFoundError, match=r"no tokenizer\.json"):
        gguf.copy_tokenizer(tmp_path, target)


def encoder(folder):
    import transformers as tf

    bert = make("bert", dtype=torch.float32, layers=1)
    tf.BertModel(bert.module.config).save_pretrained(folder)
    wordpiece().save_pretrained(folder)
    return folder


def save(model, folder):
    model.module.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


def test_a_head_is_trained_on_training_text_alone(toy_data, tmp_path):
    texts = mlm_head.texts_of(toy_data)
    assert texts == mlm_head.texts_of(toy_data)
    assert len(texts) == len(set(texts))
    test = (toy_data / "sst2/test.jsonl").read_text()
    assert sum(text in test for text in texts if len(text) > 60) < 0.02 * len(texts)
    said = []
    held = mlm_head.train_head(
        encoder(tmp_path / "e"), texts[:600], tmp_path / "m", steps=60, batch=16, lr=3e-3, say=said.append
    )
    assert held < float(said[0].split()[-1])
    model = loading.load(tmp_path / "m", "masked")
    assert model.module.get_output_embeddings().weight is model.module.get_input_embeddings().weight
    empty = tmp_path / "none"
    empty.mkdir()
    with pytest.raises(ValueError, match="too few to train a head on"):
        mlm_head.texts_of(empty)


def test_a_head_is_the_same_whenever_it_is_trained(toy_data, tmp_path):
    texts, encoded = mlm_head.texts_of(toy_data)[:600], encoder(tmp_path / "e")
    for name in "ab":
        torch.manual_seed(ord(name))
        mlm_head.train_head(encoded, texts, tmp_path / name, steps=3, batch=4, say=lambda text: None)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert first == second


@pytest.fixture
def short(monkeypatch):
    import dataclasses

    preset = dataclasses.replace(
        presets.get_preset("small"),
        name="short",
        tasks={"causal": ("sst2",), "masked": ("sst2",)},
        methods=("mezo",),
        untrained=("zero-shot",),
        multiples=(1.0,),
        steps={"causal": 4, "masked": 4},
        looks=2,
        seeds={"causal": (0,), "masked": (13,)},
        k=8,
        num_train=16,
        num_dev=8,
        num_test=16,
        row_length={},
    )
    monkeypatch.setitem(presets.PRESETS, "short", preset)


def test_calls_collect_run_and_export(short, toy_data, tmp_path, capsys):
    keep, carried, out = tmp_path / "keep", tmp_path / "carried", tmp_path / "out"
    causal = tiny_model(Recipe("causal", steps=2, width=16, heads=2), tmp_path / "cache")
    words = ["--keep", str(keep), "--data", str(toy_data), "--out", str(out), "--device", "cpu"]
    words += ["--random-models", "--head-steps", "2", "--masked-parts", "2", "--rows", "short/masked/sst2"]
    carried.mkdir()
    (tmp_path / "e").mkdir()
    with tarfile.open(tmp_path / "e.tar", "w") as tar:
        tar.add(encoder(tmp_path / "encoder"), "encoder")
    whole = (tmp_path / "e.tar").read_bytes()
    (carried / "masked.0").write_bytes(whole[:1000])
    assert gpu_rows.main([*words, "--carried", str(carried)]) == 0
    assert "carried so far: masked.0; more must come" in capsys.readouterr().out
    assert not list(carried.iterdir()), "what was carried is taken away"
    (carried / "masked.1").write_bytes(whole[1000:])
    assert gpu_rows.main([*words, "--carried", str(carried)]) == 0
    assert "all runs are there" in capsys.readouterr().out
    assert {r.config["model"] for r in read_jsonl(out / "short/masked-sst2.jsonl")} == {
        "MiniLM-L6 with an MLM head trained here"
    }
    words = [*words[:-1], "short/causal/sst2/mezo,zero-shot", "--model", f"causal={causal}"]
    assert gpu_rows.main([*words, "--rows", "short/causal/sst2/zero-shot"]) == 0
    file = out / "short/causal-sst2.jsonl"
    assert [r.config["method"] for r in read_jsonl(file)] == ["zero-shot"]
    assert gpu_rows.main(words) == 0
    records = read_jsonl(file)
    assert sorted((r.config["method"], r.config["role"]) for r in records) == [
        ("mezo", "test"),
        ("mezo", "tune"),
        ("zero-shot", "test"),
    ]
    assert all(r.config["best"] == "copy" for r in records)
    # Records of another machine stand: nothing is left to run.
    capsys.readouterr()
    words[1] = str(tmp_path / "another")
    assert gpu_rows.main([*words, "--resume", str(out), "--minutes", "0"]) == 0
    assert "all runs are there" in capsys.readouterr().out


def test_a_tuning_is_exported_to_a_file_of_its_own(tmp_path):
    made = [judged(0, 0.8, tuning=tuning) for tuning in ("full", "lora", "prefix")]
    with Store(tmp_path / "runs.sqlite") as store:
        for record in made:
            store.put(Record.of("llm/small", record.config, record.result))
        gpu_rows.export(store, tmp_path / "out")
    files = {
        f"causal-sst2{end}.jsonl": tuning for end, tuning in (("", "full"), ("-lora", "lora"), ("-prefix", "prefix"))
    }
    assert {path.name for path in (tmp_path / "out" / "small").iterdir()} == files.keys()
    for name, tuning in files.items():
        (record,) = read_jsonl(tmp_path / "out" / "small" / name)
        assert record.config["tuning"] == tuning


def test_another_result_of_a_run_that_stands_is_told(tmp_path, capsys):
    for name, steps in (("a", 1), ("b", 2)):
        write_jsonl(tmp_path / f"{name}.jsonl", [Record.of("e", {"x": 1}, {"steps": steps})], "test")
    with Store(tmp_path / "runs.sqlite") as store:
        gpu_rows.resume(tmp_path, store)
        assert store.records()[0].result == {"steps": 1}
    assert "b.jsonl: e/" in capsys.readouterr().out


def test_what_is_packed_is_what_a_call_takes(tmp_path, monkeypatch):
    """The file itself is not converted here: it is a text of bytes, and the model a tiny one."""
    (tmp_path / "m.gguf").write_bytes(bytes(range(256)) * 1000)
    model = make("opt")
    monkeypatch.setattr(packed_models.gguf, "convert", lambda source, out, *rest: save(model, out))
    folder = encoder(tmp_path / "e")
    words = ["--gguf", str(tmp_path / "m.gguf"), "--encoder", str(folder), "--out", str(tmp_path / "c")]
    monkeypatch.setattr(packed_models, "package", lambda name: {f"site/{name}/__init__.py": b""})
    assert packed_models.main([*words, "--mebibytes", "0.125"]) == 0
    recipe = packed_models.ModelParts(tmp_path / "k", tmp_path, "cpu", 2, None, 0, 1)
    recipe.keep.mkdir()
    sizes = []
    for piece in sorted((tmp_path / "c").iterdir(), key=lambda path: int(path.name)):
        sizes.append(sum(path.stat().st_size for path in piece.rglob("*") if path.is_file()))
        recipe.take(piece)
    assert max(sizes) <= 0.125 * 2**20
    made = recipe.make("causal")
    assert made == recipe.keep / "causal"
    assert (recipe.keep / "causal.gguf").read_bytes() == (tmp_path / "m.gguf").read_bytes()
    assert "site" in {path.name for path in recipe.keep.iterdir()}


def test_packing_deletes_nothing_but_what_it_wrote(tmp_path):
    pieces = [{"gguf.0": b"1234"}, {"gguf.1": b"5678"}]
    assert len(packed_models.write(tmp_path, pieces, 4)) == 2
    assert len(packed_models.write(tmp_path, pieces, 8)) == 1, "folders of a call before give way"
    assert not (tmp_path / "1").exists()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds notes\.txt, which would be deleted"):
        packed_models.write(tmp_path, pieces, 8)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_two_cards_share_the_cells_of_a_call(toy_data, tmp_path, capfd):
    causal = tiny_model(Recipe("causal", steps=2, width=16, heads=2), tmp_path / "cache")
    words = ["--keep", str(tmp_path / "k"), "--data", str(toy_data), "--out", str(tmp_path / "o"), "--device", "cpu"]
    words += ["--random-models", "--model", f"causal={causal}", "--rows", "smoke/causal/sst2/zero-shot,bias-only"]
    assert gpu_rows.main([*words, "--per-card", "2"]) == 0
    assert capfd.readouterr().out.count("| test |") == 2, "each cell was run once"
    assert [path.name for path in (tmp_path / "o").rglob("*.*")] == ["causal-sst2.jsonl"]
    methods = {record.config["method"] for record in read_jsonl(tmp_path / "o" / "smoke/causal-sst2.jsonl")}
    assert methods == {"zero-shot", "bias-only"}
    on_the_second = [sys.executable, "-c", "import os; raise SystemExit(os.environ['CUDA_VISIBLE_DEVICES'] == '1')"]
    assert side_by_side.side_by_side([on_the_second] * 4, 2, {}) == 2


def test_calls_of_one_card_share_it_by_cudas_service(tmp_path, monkeypatch, capfd):
    """With a program in the service's place that notes what it is told; it ends after an error, too."""
    control, notes, pipe = tmp_path / "nvidia-cuda-mps-control", tmp_path / "notes", str(tmp_path / "mps" / "pipe")
    control.write_text(f'#!/bin/sh\necho "$@" $(test "$1" || cat) $CUDA_MPS_PIPE_DIRECTORY >> {notes}')
    control.chmod(0o755)
    with monkeypatch.context() as without:
        without.setenv("PATH", str(tmp_path / "none"))
        with side_by_side.shared_cards(tmp_path / "mps") as told:
            assert told == {}
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    stack = ExitStack()
    told = stack.enter_context(side_by_side.shared_cards(tmp_path / "mps"))
    call = [sys.executable, "-c", "import os; print(os.environ['CUDA_MPS_PIPE_DIRECTORY'])"]
    assert side_by_side.side_by_side([call], 1, told) == 0
    assert capfd.readouterr().out.split() == [pipe]
    with pytest.raises(KeyboardInterrupt), stack:
        raise KeyboardInterrupt
    assert notes.read_text().split() == ["-d", pipe, "quit", pipe]


def test_calls_side_by_side_share_every_tuning():
    _, found = gpu_rows.cells_of("table-3/causal/sst2/mezo")
    assert len({gpu_rows.named("table-3", cell) for cell in found}) == len(found) == 3


def test_what_is_there_is_exported_when_a_call_is_interrupted(short, toy_data, tmp_path, monkeypatch, capsys):
    causal = tiny_model(Recipe("causal", steps=2, width=16, heads=2), tmp_path / "cache")
    made, real = [], execute.run

    def interrupted(config, env):
        if made:
            raise KeyboardInterrupt
        made.append(config)
        return real(config, env)

    monkeypatch.setattr(execute, "run", interrupted)
    words = ["--keep", str(tmp_path / "k"), "--data", str(toy_data), "--out", str(tmp_path / "o"), "--device", "cpu"]
    words += ["--random-models", "--model", f"causal={causal}", "--rows", "short/causal/sst2/zero-shot,mezo"]
    assert gpu_rows.main(words) == 0
    assert "interrupted" in capsys.readouterr().out
    assert [r.config["method"] for r in read_jsonl(tmp_path / "o" / "short/causal-sst2.jsonl")] == ["zero-shot"]


def test_a_cell_that_cannot_be_run_does_not_stop_the_others(short, toy_data, tmp_path, monkeypatch, capsys):
    causal = tiny_model(Recipe("causal", steps=2, width=16, heads=2), tmp_path / "cache")
    real = execute.cell_records

    def too_few(bench, cell, found):
        if cell.method == "zero-shot":
            raise ValueError("class x has 3 rows")
        if cell.method == "icl":
            raise FileNotFoundError("no test split")
        return real(bench, cell, found)

    monkeypatch.setattr(execute, "cell_records", too_few)
    words = ["--keep", str(tmp_path / "k"), "--data", str(toy_data), "--out", str(tmp_path / "o"), "--device", "cpu"]
    words += ["--random-models", "--model", f"causal={causal}", "--rows", "short/causal/sst2/zero-shot,icl,mezo"]
    assert gpu_rows.main(words) == 1
    said = capsys.readouterr().out
    assert "short/causal/sst2/zero-shot/full cannot be run: class x has 3 rows" in said
    assert "short/causal/sst2/icl/full cannot be run: no test split" in said
    assert "all other runs are there" in said
    assert {r.config["method"] for r in read_jsonl(tmp_path / "o" / "short/causal-sst2.jsonl")} == {"mezo"}


def test_the_rows_of_a_call_are_presets_and_methods_that_exist():
    for word in gpu_rows.ROWS:
        name, cells = gpu_rows.cells_of(word)
        assert cells, word
        assert {cell.task for cell in cells} <= set(presets.get_preset(name).tasks[cells[0].kind])
    _, cells = gpu_rows.cells_of("small/causal/sst2/helene,zero-shot,mezo")
    assert [cell.method for cell in cells] == ["helene", "zero-shot", "mezo"]
    with pytest.raises(ValueError, match="there is no method 'none'"):
        gpu_rows.cells_of("small/causal/sst2/none")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rows", "small"], "rows are PRESET/KIND/TASK[/METHOD,METHOD], got 'small'"),
        (["--rows", "small/any/sst2"], "kind must be causal or masked, got 'any'"),
        (["--model", "/a/folder"], "--model must be causal=DIR or masked=DIR, got /a/folder"),
        (["--cards", "0"], "--cards and --per-card must be at least 1, got 0, 1"),
        (["--carried", "/no/folder"], "--carried /no/folder is no folder; give the one that this call brought"),
    ],
)
def test_bad_words_of_a_call_are_one_line(words, message, tmp_path, capsys):
    where = ["--keep", str(tmp_path), "--data", str(tmp_path), "--out", str(tmp_path)]
    with pytest.raises(SystemExit, match="2"):
        gpu_rows.main([*where, *words])
    assert f"error: {message}" in capsys.readouterr().err


def test_a_keeping_folder_is_not_moved_into_itself(tmp_path, capsys):
    (tmp_path / "encoder").mkdir()
    where = ["--keep", str(tmp_path), "--data", str(tmp_path), "--out", str(tmp_path)]
    with pytest.raises(SystemExit, match="2"):
        gpu_rows.main([*where, "--carried", str(tmp_path)])
    assert f"error: --carried and --keep are one folder, {tmp_path}; give two" in capsys.readouterr().err
    assert (tmp_path / "encoder").is_dir()


def test_what_a_call_cannot_use_is_told_in_one_line(tmp_path, capsys):
    causal = tiny_model(Recipe("causal", steps=2, width=16, heads=2), tmp_path / "cache")
    words = ["--keep", str(tmp_path / "k"), "--data", str(tmp_path), "--out", str(tmp_path / "o"), "--device", "cpu"]
    (tmp_path / "damaged.jsonl").write_text('{"key": ')
    assert gpu_rows.main([*words, "--model", f"causal={causal}", "--resume", str(tmp_path / "damaged.jsonl")]) == 2
    said = capsys.readouterr().err
    assert f"line 1 of {tmp_path / 'damaged.jsonl'} is not a record" in said
    assert "export the file again" in said
    for i in range(2):
        (tmp_path / "k" / f"gguf.{i}").write_bytes(b"part")
    (tmp_path / "k" / "causal-tokenizer").mkdir()
    assert gpu_rows.main([*words, "--parts", "2", "--sha256", "0" * 64]) == 2
    said += capsys.readouterr().err
    assert "carry them again" in said
    assert said.count("\n") == 2


def test_a_run_that_had_failed_and_is_made_again_is_exported(short, toy_data, tmp_path, monkeypatch):
    causal = tiny_model(Recipe("causal", steps=2, width=16, heads=2), tmp_path / "cache")
    words = ["--data", str(toy_data), "--device", "cpu", "--random-models", "--model", f"causal={causal}"]
    words += ["--rows", "short/causal/sst2/zero-shot"]

    def call(name, *more):
        where = ["--keep", str(tmp_path / name), "--out", str(tmp_path / name / "out")]
        assert gpu_rows.main([*words, *where, *more]) == 0
        return read_jsonl(tmp_path / name / "out" / "short/causal-sst2.jsonl")

    with monkeypatch.context() as patch:
        patch.setattr(execute, "run", lambda config, env: 1 / 0)
        (failed,) = call("first")
    assert failed.failed
    (made,) = call("second", "--resume", str(tmp_path / "first" / "out"))
    assert made.key == failed.key
    assert not made.failed
