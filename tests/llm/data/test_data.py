import codecs
import json
import math
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llm_bench.data import splits
from llm_bench.data.fetch import fetch
from llm_bench.data.files import rows_of
from llm_bench.data.folder import read_split
from llm_bench.tasks import get_task, task_names
from llm_bench.tiny.grammar import MAKERS

SST2, CB, SNLI = get_task("sst2", "masked"), get_task("cb", "causal"), get_task("snli", "masked")


def write(folder, name, split, rows):
    (folder / name).mkdir(exist_ok=True)
    (folder / name / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def reviews(count, start=0):
    return [{"sentence": f"film {start + i}", "label": i % 2} for i in range(count)]


def parquet(path, rows, names=None):
    table = pa.Table.from_pylist(rows)
    if names:
        features = {"label": {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path)


def test_integers_mean_the_hub_order_where_the_data_say_nothing(tmp_path):
    write(tmp_path, "cb", "train", [{"premise": "p", "hypothesis": "h", "label": i} for i in range(3)])
    rows = read_split(tmp_path, CB, "train")
    assert [row["label"] for row in rows] == ["entailment", "contradiction", "neutral"]


def test_labels_go_by_name_when_a_file_beside_them_names_them(tmp_path):
    write(tmp_path, "sst2", "train", reviews(2))
    (tmp_path / "sst2/labels.json").write_text('{"label": ["positive", "negative"]}')
    assert [row["label"] for row in read_split(tmp_path, SST2, "train")] == ["positive", "negative"]


def test_labels_go_by_name_when_parquet_metadata_name_them(tmp_path):
    parquet(tmp_path / "sst2/train.parquet", reviews(2), ["positive", "negative"])
    assert [row["label"] for row in read_split(tmp_path, SST2, "train")] == ["positive", "negative"]


def test_labels_may_be_the_names_themselves(tmp_path):
    write(tmp_path, "sst2", "train", [{"sentence": "x", "label": "positive"}])
    assert read_split(tmp_path, SST2, "train")[0]["label"] == "positive"
    boolq = get_task("boolq", "causal")
    write(tmp_path, "boolq", "train", [{"passage": "p", "question": "q", "label": True}])
    assert read_split(tmp_path, boolq, "train")[0]["label"] == "True"


def test_jsonl_and_parquet_of_the_same_rows_read_alike(tmp_path):
    write(tmp_path, "sst2", "train", reviews(5))
    (tmp_path / "other").mkdir()
    parquet(tmp_path / "other/sst2/train.parquet", reviews(5))
    assert read_split(tmp_path, SST2, "train") == read_split(tmp_path / "other", SST2, "train")


def test_other_classes_are_refused(tmp_path):
    write(tmp_path, "sst2", "train", reviews(2))
    (tmp_path / "sst2/labels.json").write_text('{"label": ["good", "bad"]}')
    with pytest.raises(ValueError, match="names the classes of 'label' good, bad; this task's are negative, positive"):
        read_split(tmp_path, SST2, "train")


@pytest.mark.parametrize("label", [2, -1, "great", None, 0.5])
def test_labels_out_of_range_name_the_row(tmp_path, label):
    write(tmp_path, "sst2", "train", [*reviews(2), {"sentence": "x", "label": label}])
    with pytest.raises(ValueError, match=r"row 3 of .*sst2.train.jsonl has label=.*must be one of negative, positive"):
        read_split(tmp_path, SST2, "train")


def test_unlabelled_rows_are_dropped_only_where_they_are_known_to_occur(tmp_path):
    write(tmp_path, "snli", "train", [{"premise": "p", "hypothesis": "h", "label": i} for i in (-1, 0, 2)])
    assert [row["label"] for row in read_split(tmp_path, SNLI, "train")] == ["entailment", "contradiction"]
    write(tmp_path, "sst2", "test", [{"sentence": "x", "label": -1}])
    with pytest.raises(ValueError, match="-1 marks a hidden test set"):
        read_split(tmp_path, SST2, "test")


def test_missing_things_are_named_with_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="no data folder"):
        read_split(tmp_path / "none", SST2, "train")
    with pytest.raises(FileNotFoundError, match=r"no train split of sst2 in .*helene llm data fetch sst2"):
        read_split(tmp_path, SST2, "train")
    write(tmp_path, "cb", "train", [{"premise": "p", "label": 0}])
    with pytest.raises(
        ValueError, match=r"row 1 of .* has no hypothesis; cb needs premise, hypothesis, the row has premise, label"
    ):
        read_split(tmp_path, CB, "train")
    (tmp_path / "cb/test.jsonl").write_text('{"premise": "p"\n')
    with pytest.raises(ValueError, match=r"line 1 of .*test.jsonl is not JSON"):
        read_split(tmp_path, CB, "test")
    (tmp_path / "cb/test.jsonl").write_text("")
    with pytest.raises(ValueError, match="has no rows"):
        read_split(tmp_path, CB, "test")


MALFORMED = [
    (
        "sst2",
        "masked",
        {"sentence": 5, "label": 0},
        "sst2 reads text in 'sentence', the row has 5$",
    ),
    (
        "squad",
        "causal",
        {"answers": ["a"]},
        r"squad reads an object with a list of texts under 'text' in 'answers', the row has \['a'\]$",
    ),
    ("squad", "causal", {"answers": {"text": []}}, "squad makes no example of 'answers' = {'text': .*out of range"),
    ("squad", "causal", {"answers": {}}, "under 'text' in 'answers', the row has {}$"),
    ("record", "causal", {"answers": ["Cy"]}, r"'answers' = \['Cy'\] .*'Cy' is none of the entities Al, Bo"),
    ("record", "causal", {"answers": []}, r"'answers' = \[\] .*no right option follows from it"),
    ("record", "causal", {"entities": 7}, "record reads a list of texts in 'entities', the row has 7$"),
    ("record", "causal", {"entities": ["Al", 7]}, r"a list of texts in 'entities', the row has \['Al', 7\]$"),
    ("sst2", "masked", {"sentence": float("nan")}, "reads text in 'sentence', the row has nan$"),
    ("copa", "causal", {"choice2": ["x" * 99]}, "'choice2', the row has .{77}[.][.][.]$"),
]


@pytest.mark.parametrize(("name", "kind", "change", "text"), MALFORMED)
def test_malformed_rows_name_split_number_field_and_what_there_is(tmp_path, name, kind, change, text):
    rows = {
        "sst2": {"sentence": "x", "label": 1},
        "squad": {"title": "t", "context": "c", "question": "q", "answers": {"text": ["c"]}},
        "record": {"passage": "p", "query": "q", "entities": ["Al", "Bo"], "answers": ["Al"]},
        "copa": {"premise": "p", "choice1": "a", "choice2": "b", "question": "cause", "label": 1},
    }
    good = rows[name]
    write(tmp_path, name, "validation", [good, {**good, **change}])
    with pytest.raises(ValueError, match=rf"row 2 of .*{name}.validation.jsonl: .*{text}"):
        read_split(tmp_path, get_task(name, kind), "validation")


def folder_of(tmp_path, train=80, test=40, validation=0):
    write(tmp_path, "sst2", "train", reviews(train))
    write(tmp_path, "sst2", "test", reviews(test, 1000))
    if validation:
        write(tmp_path, "sst2", "validation", reviews(validation, 2000))
    return tmp_path


def texts(rows):
    return [row["sentence"] for row in rows]


def test_few_shot_splits_are_balanced_disjoint_and_a_function_of_the_seed(tmp_path):
    folder = folder_of(tmp_path)
    seen = set()
    for seed in (13, 21, 42, 87, 100):
        split = splits.few_shot(folder, SST2, seed, k=8, test_size=10)
        for rows in (split.train, split.dev):
            assert [row["label"] for row in rows].count("positive") == len(rows) / 2 == 8
        assert not set(texts(split.train)) & set(texts(split.dev))
        assert split == splits.few_shot(folder, SST2, seed, k=8, test_size=10)
        assert (split.source, split.overlap, len(split.test)) == ("drawn", 0, 10)
        seen.add(tuple(sorted(texts(split.train))))
    assert len(seen) == 5
    tests = {tuple(texts(splits.few_shot(folder, SST2, seed, k=8, test_size=10).test)) for seed in (13, 21)}
    assert len(tests) == 1, "the test rows must not depend on the data seed"


def test_published_few_shot_splits_are_taken_as_they_are(tmp_path):
    folder = folder_of(tmp_path)
    (tmp_path / "kshot/sst2").mkdir(parents=True)
    write(tmp_path / "kshot/sst2", "16-13", "train", reviews(32, 5000))
    write(tmp_path / "kshot/sst2", "16-13", "validation", [*reviews(31, 6000), reviews(1, 1000)[0]])
    split = splits.few_shot(folder, SST2, 13)
    assert texts(split.train) == texts(reviews(32, 5000))
    assert (split.source, split.overlap) == ("published", 1)
    assert splits.few_shot(folder, SST2, 21).source == "drawn"


def test_too_few_rows_of_a_class_are_named(tmp_path):
    with pytest.raises(ValueError, match="class negative has 40 training rows, k=21 for train and dev needs 42"):
        splits.few_shot(folder_of(tmp_path), SST2, 13, k=21)
    with pytest.raises(ValueError, match="k must be an integer of at least 1, got 0"):
        splits.few_shot(folder_of(tmp_path), SST2, 13, k=0)


def test_many_shot_takes_dev_from_validation_or_from_the_rest_of_train(tmp_path):
    task = get_task("sst2", "causal")
    folder = folder_of(tmp_path, train=80)
    split = splits.many_shot(folder, task, 0, num_train=50, num_dev=20, test_size=30)
    assert [len(r) for r in (split.train, split.dev, split.test)] == [50, 20, 30]
    assert not set(texts(split.train)) & set(texts(split.dev))
    short = splits.many_shot(folder, task, 0, num_train=1000, num_dev=20)
    assert [len(short.train), len(short.dev)] == [60, 20]
    folder_of(tmp_path, validation=25)
    split = splits.many_shot(folder, task, 0)
    assert [len(split.train), len(split.dev), len(split.test)] == [80, 25, 40]
    assert set(texts(split.dev)) == set(texts(reviews(25, 2000)))
    assert (
        splits.many_shot(folder, task, 1, num_train=50).train != splits.many_shot(folder, task, 2, num_train=50).train
    )


def test_the_sample_does_not_depend_on_a_librarys_generator():
    rows = [{"i": i} for i in range(10)]
    assert [row["i"] for row in splits.sample(rows, 4, "42/train")] == [1, 6, 2, 3]


def test_fetch_writes_rows_and_the_names_of_labels(tmp_path):
    calls = []

    class Rows(list):
        def __init__(self, rows):
            super().__init__(rows)
            self.features = {"label": type("ClassLabel", (), {"names": ["positive", "negative"]})()}

    def load(path, config, split):
        calls.append((path, config, split))
        return Rows([{"sentence": "good", "label": 0, "idx": 7}])

    written = fetch(SST2, tmp_path, load)
    assert calls == [("nyu-mll/glue", "sst2", "train"), ("nyu-mll/glue", "sst2", "validation")]
    assert [path.name for path in written] == ["train.jsonl", "test.jsonl"]
    assert read_split(tmp_path, SST2, "test")[0]["label"] == "positive"


COLUMNS = {  # of the Hub's data sets
    ("nyu-mll/glue", "sst2"): "sentence label idx",
    ("nyu-mll/glue", "mnli"): "premise hypothesis label idx",
    ("SetFit/sst5", None): "text label label_text",
    ("stanfordnlp/snli", None): "premise hypothesis label",
    ("CogComp/trec", None): "text coarse_label fine_label",
    ("aps/super_glue", "rte"): "premise hypothesis idx label",
    ("aps/super_glue", "cb"): "premise hypothesis idx label",
    ("aps/super_glue", "boolq"): "question passage idx label",
    ("aps/super_glue", "wsc.fixed"): "text span1_index span2_index span1_text span2_text idx label",
    ("aps/super_glue", "wic"): "word sentence1 sentence2 start1 start2 end1 end2 idx label",
    ("aps/super_glue", "copa"): "premise choice1 choice2 question idx label",
    ("aps/super_glue", "record"): "passage query entities entity_spans answers idx",
    ("rajpurkar/squad", None): "id title context question answers",
}


@pytest.mark.parametrize("name", sorted({*task_names("masked"), *task_names("causal")}))
def test_what_is_fetched_can_be_read_by_every_task_of_the_name(name, tmp_path):
    """The command takes the first kind that has it; the Hub's columns are those of the data set that is asked for."""
    kinds = [kind for kind in ("masked", "causal") if name in task_names(kind)]

    def load(path, config, split):
        row = MAKERS[name](random.Random(split))
        return [{column: row.get(column, 0) for column in COLUMNS[path, config].split()}]

    fetch(get_task(name, kinds[0]), tmp_path, load)
    for kind in kinds:
        for split in ("train", "test"):
            assert len(read_split(tmp_path, get_task(name, kind), split)) == 1


def test_fetch_says_what_failed(tmp_path):
    def load(path, config, split):
        raise ConnectionError("no route")

    with pytest.raises(ValueError, match=r"cannot load nyu-mll/glue \(sst2, train\) from the Hub: ConnectionError"):
        fetch(SST2, tmp_path, load)


def test_text_that_parquet_stores_as_bytes_is_text(tmp_path):
    """BINARY columns, as some writers make them, nested ones too; what is no UTF-8 is named."""
    rows = reviews(4)
    parquet(tmp_path / "sst2/train.parquet", [{**row, "sentence": row["sentence"].encode()} for row in rows])
    write(tmp_path, "sst2", "validation", rows)
    assert [r["sentence"] for r in read_split(tmp_path, SST2, "train")] == [row["sentence"] for row in rows]
    nested = [{"answers": {"text": ["caf\N{LATIN SMALL LETTER E WITH ACUTE}".encode()], "start": [3]}}]
    parquet(tmp_path / "nested/train.parquet", nested)
    assert list(rows_of(tmp_path / "nested/train.parquet")) == [{"answers": {"text": ["caf\xe9"], "start": [3]}}]
    parquet(tmp_path / "bad/train.parquet", [{"sentence": b"fine"}, {"sentence": b"caf\xe9"}])
    with pytest.raises(ValueError, match=r"sentence in row 2 of .*bad.train\.parquet is bytes that are no UTF-8 text"):
        list(rows_of(tmp_path / "bad/train.parquet"))


def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path):
    write(tmp_path, "sst2", "train", reviews(3))
    expected = read_split(tmp_path, SST2, "train")
    path = tmp_path / "sst2/train.jsonl"
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert read_split(tmp_path, SST2, "train") == expected
    (tmp_path / "sst2/labels.json").write_bytes(codecs.BOM_UTF8 + b'{"label": ["positive", "negative"]}')
    assert [row["label"] for row in read_split(tmp_path, SST2, "train")] == ["positive", "negative", "positive"]


DAMAGED = [
    (
        "train.jsonl",
        '{"sentence": "caf\xe9", "label": 1}'.encode("latin-1"),
        "train.jsonl is no UTF-8 text but another",
    ),
    ("train.jsonl", '{"sentence": "x", "label": 1}'.encode("utf-16"), "train.jsonl is no UTF-8 text but UTF-16 .*save"),
    ("train.parquet", b"PAR1 and no more", "train.parquet is damaged, or no Parquet file .*fetch the file again"),
    ("labels.json", b'["negative", "positive"]', r"labels.json is a list; it reads {.label.: \[names\]}"),
    ("labels.json", b'{"label": ["negative"', "labels.json is not JSON"),
    ("labels.json", '{"label": []}'.encode("utf-16"), "labels.json is no UTF-8 text but UTF-16"),
    ("labels.json", b'{"label": "negative"}', "labels.json names the classes of 'label' 'negative'; this task's are"),
    ("labels.json", b'{"label": ["negative", "positive", "negative"]}', "each once, so it is another data set"),
]


@pytest.mark.parametrize(("name", "content", "text"), DAMAGED)
def test_damaged_files_are_named(tmp_path, name, content, text):
    if name == "labels.json":
        write(tmp_path, "sst2", "train", reviews(2))
    (tmp_path / "sst2").mkdir(exist_ok=True)
    (tmp_path / "sst2" / name).write_bytes(content)
    with pytest.raises(ValueError, match=text) as caught:
        read_split(tmp_path, SST2, "train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("metadata", [b"{broken", b'["a list"]', b'{"info": {"features": {"label": 3}}}'])
def test_damaged_metadata_name_the_file(tmp_path, metadata):
    table = pa.Table.from_pylist(reviews(2)).replace_schema_metadata({"huggingface": metadata})
    (tmp_path / "sst2").mkdir()
    pq.write_table(table, tmp_path / "sst2/train.parquet")
    with pytest.raises(ValueError, match=r"the metadata 'huggingface' of .*train.parquet is damaged"):
        read_split(tmp_path, SST2, "train")


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in ("masked", "causal") for name in task_names(kind)])
def test_every_field_of_every_task_takes_its_type_alone(kind, name):
    task = get_task(name, kind)
    row = dict(MAKERS[name](random.Random(0)))
    row |= {task.labels.column: task.labels.names[0]} if task.labels else {}
    task.make(row)
    for field in task.fields:
        for value in (math.nan, b"bytes", 7, None, [b"bytes"], {"text": [math.nan]}, {"text": "a"}):
            with pytest.raises(ValueError, match=rf"^{name} reads .* in '{field}', the row has"):
                task.make({**row, field: value})
