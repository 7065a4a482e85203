"""Records, their canonical JSON, the store, merge and export. Oracle: what was put in comes out, bit for bit."""

from __future__ import annotations

import hashlib
import json
import math
import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helene.lab.runs import canonical
from helene.lab.runs import records as records_module
from helene.lab.runs.store import MergeReport, Record, Store, StoreError, config_key, read_jsonl

names = st.text(string.ascii_letters + "_θ", min_size=1, max_size=8)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))
configs = st.dictionaries(names, values, max_size=4)
records = st.builds(Record.of, st.sampled_from(["a", "b"]), configs, configs, configs)


def rec(i, experiment="e", result=None, **config):
    return Record.of(experiment, {"i": i, **config}, result or {"status": "reached", "steps": i}, {"commit": "abc"})


def text_of(records):
    return [canonical.dumps(r) for r in records]


@given(values)
@settings(deadline=None)
def test_json_keeps_every_value_infinities_and_nan_included(value):
    text = canonical.dumps(value)
    assert canonical.dumps(canonical.loads(text)) == text
    # Strict JSON: no reader of another language meets Infinity or NaN.
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_infinities_come_back_as_floats():
    back = canonical.loads(canonical.dumps({"a": [math.inf, -math.inf, math.nan, -0.0]}))["a"]
    assert back[:2] == [math.inf, -math.inf]
    assert math.isnan(back[2])
    assert math.copysign(1, back[3]) == -1


def test_numpy_and_tuples_become_plain():
    value = {"a": np.float64(0.1), "b": np.arange(3), "c": (1, np.bool_(True)), "d": np.inf * np.ones(1)}
    assert canonical.plain(value) == {"a": 0.1, "b": [0, 1, 2], "c": [1, True], "d": [math.inf]}
    long = np.longdouble(0.5)  # whose tolist() is no Python number
    assert canonical.plain([long, np.array([long])]) == [0.5, [0.5]]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": {"b": {1}}}, r"value\.a\.b is a set"),
        ({1: 2}, "key 1 of type int"),
        ({"$float": "inf"}, "reserved"),
        ([np.clongdouble(1)], r"value\[0\] is a clongdouble"),
    ],
)
def test_what_has_no_json_form_is_named(value, said):
    with pytest.raises(ValueError, match=said):
        canonical.plain(value)


@given(configs, st.randoms())
@settings(deadline=None)
def test_key_ignores_the_order_of_entries(config, random):
    items = list(config.items())
    random.shuffle(items)
    assert config_key(dict(items)) == config_key(config)
    assert len(config_key(config)) == 24


def test_key_is_pinned():
    """Written out by hand: keys name committed records, so their definition may never drift."""
    text = '{"cap":{"$float":"inf"},"d":4,"lr":0.1,"method":"mezo"}'
    expected = hashlib.sha256(text.encode()).hexdigest()[:24]
    assert config_key({"method": "mezo", "d": 4, "lr": 0.1, "cap": math.inf}) == expected == "a1e586aac5fdd1543371d9ee"
    assert config_key({"d": 4}) != config_key({"d": 4.0})
    assert config_key({"d": (1, 2)}) == config_key({"d": [1, 2]})


@given(st.lists(records, max_size=6))
@settings(deadline=None, max_examples=12)
def test_store_returns_what_was_put(tmp_path_factory, given_records):
    path = tmp_path_factory.mktemp("store") / "s.sqlite"
    expected = {(r.key, r.experiment): r for r in given_records}
    with Store(path) as store:
        for r in given_records:
            store.put(r)
    with Store(path) as store:
        assert text_of(store.records()) == text_of(expected[k] for k in sorted(expected))
        assert len(store) == len(expected)
        for r in expected.values():
            assert canonical.dumps(store.get(r.key, r.experiment)) == canonical.dumps(r)
            assert r.key in store
            assert (r.experiment, r.key) in store
    assert [p.name for p in path.parent.iterdir()] == ["s.sqlite"]  # one file: no WAL, no lock left behind


def test_get_of_a_key_of_two_experiments_asks_which(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        store.put(rec(1, "a"))
        store.put(rec(1, "b"))
        with pytest.raises(StoreError, match=r"several experiments \(a, b\)"):
            store.get(rec(1).key)
        assert store.get(rec(1).key, "b").experiment == "b"
        assert store.get("0" * 24) is None
        assert "0" * 24 not in store
        assert ("c", rec(1).key) not in store
        assert store.experiments() == {"a": 1, "b": 1}


def test_comparable_leaves_out_seconds_at_any_depth_and_provenance():
    fast = Record.of(
        "e", {"i": 1}, {"steps": 3, "run_seconds": 1.0, "parts": [{"eval_seconds": 2, "n": 1}]}, {"cpu": "x"}
    )
    slow = Record.of(
        "e", {"i": 1}, {"steps": 3, "run_seconds": 9.0, "parts": [{"eval_seconds": 7, "n": 1}]}, {"cpu": "y"}
    )
    other = Record.of("e", {"i": 1}, {"steps": 4, "run_seconds": 1.0, "parts": [{"n": 1}]})
    assert fast.comparable() == slow.comparable() != other.comparable()


@given(st.lists(records, max_size=6))
@settings(deadline=None, max_examples=10)
def test_merging_from_store_and_from_export_agree_and_are_idempotent(tmp_path_factory, given_records):
    folder = tmp_path_factory.mktemp("merge")
    with Store(folder / "source.sqlite") as source:
        for r in given_records:
            source.put(r)
        everything = source.records()
        exports = []
        for name in source.experiments():
            exports.append(folder / f"{name}.jsonl")
            assert source.export_jsonl(exports[-1], name) == len(source.records(name))
    with Store(folder / "from_store.sqlite") as one, Store(folder / "from_files.sqlite") as two:
        assert one.merge(folder / "source.sqlite").added == len(everything)
        for file in exports:
            two.merge(file)
        assert text_of(one.records()) == text_of(two.records()) == text_of(everything)
        assert one.merge(folder / "source.sqlite") == MergeReport(0, len(everything), 0, ())


def test_merge_keeps_the_finished_and_reports_conflicts(tmp_path):
    error = {"status": "error", "message": "x"}
    with Store(tmp_path / "theirs.sqlite") as theirs:
        theirs.put(rec(1))  # we have an error there: replaced
        theirs.put(rec(2, result=error))  # we have finished that: kept
        theirs.put(rec(3, result={"steps": 7}))  # we found something else: conflict
        theirs.put(rec(4, result={"steps": 1, "run_seconds": 5.0}))  # the same but for the time
        theirs.put(rec(5))  # new
    with Store(tmp_path / "ours.sqlite") as ours:
        for r in (rec(1, result=error), rec(2), rec(3), rec(4, result={"steps": 1, "run_seconds": 2.0})):
            ours.put(r)
        report = ours.merge(tmp_path / "theirs.sqlite")
        assert report == MergeReport(1, 2, 1, (f"e/{rec(3).key}",))
        assert ours.get(rec(1).key).result == rec(1).result
        assert ours.get(rec(2).key).result == rec(2).result
        assert ours.get(rec(3).key).result == rec(3).result


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ({"steps": 7}, (1, 0, 0, 1)),
        ({"status": "error", "message": "x"}, (1, 1, 0, 0)),
        ({"status": "reached", "steps": 1}, (1, 1, 0, 0)),
    ],
)
def test_merging_a_file_that_holds_a_key_twice_keeps_the_first_finished(tmp_path, second, expected):
    """Exports put together with cat: no result is overwritten in silence."""
    texts = []
    for name, result in (("first", None), ("second", second)):
        with Store(tmp_path / f"{name}.sqlite") as store:
            store.put(rec(1, result=result))
            store.export_jsonl(tmp_path / f"{name}.jsonl", "e")
        texts.append((tmp_path / f"{name}.jsonl").read_text())
    (tmp_path / "both.jsonl").write_text("".join(texts))
    added, same, replaced, conflicts = expected
    with Store(tmp_path / "ours.sqlite") as ours:
        assert ours.merge(tmp_path / "both.jsonl") == MergeReport(
            added, same, replaced, (f"e/{rec(1).key}",) * conflicts
        )
        assert ours.get(rec(1).key).result == rec(1).result


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, [math.nan], 1, None])
def test_where_finds_every_value(tmp_path, value):
    with Store(tmp_path / "s.sqlite") as store:
        store.put(rec(1, lr=value))
        store.put(rec(2, lr="other"))
        assert store.export_jsonl(tmp_path / "s.jsonl", "e", {"lr": value}) == 1


def test_export_is_sorted_small_and_independent_of_the_order_of_writing(tmp_path):
    for name, order in (("a", range(20)), ("b", reversed(range(20)))):
        with Store(tmp_path / f"{name}.sqlite") as store:
            for i in order:
                store.put(rec(i))
            store.export_jsonl(tmp_path / "out" / f"{name}.jsonl", "e")
    text = (tmp_path / "out" / "a.jsonl").read_bytes()
    assert text == (tmp_path / "out" / "b.jsonl").read_bytes()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["key"] for row in rows[1:]] == sorted(row["key"] for row in rows[1:])
    assert sum("config" not in row for row in rows) == 1  # the common provenance stands there once
    assert [p.name for p in (tmp_path / "out").iterdir() if "partial" in p.name] == []


@pytest.fixture
def small_limit(monkeypatch):
    assert records_module.EXPORT_LIMIT_BYTES == 1 << 20
    monkeypatch.setattr(records_module, "EXPORT_LIMIT_BYTES", 20_000)


def test_export_above_the_limit_says_how_to_split_and_the_split_works(tmp_path, small_limit):
    with Store(tmp_path / "s.sqlite") as store:
        for i in range(40):
            store.put(rec(i, result={"trace": [0.1] * 150}, method=["helene", "mezo"][i % 2]))
        with pytest.raises(StoreError, match=r"split by 'method' \(--where method=VALUE.*: 2 files"):
            store.export_jsonl(tmp_path / "e.jsonl", "e")
        assert not (tmp_path / "e.jsonl").exists()
        for method in ("helene", "mezo"):
            assert store.export_jsonl(tmp_path / f"{method}.jsonl", "e", {"method": method}) == 20
            assert (tmp_path / f"{method}.jsonl").stat().st_size <= 20_000
        with pytest.raises(StoreError, match=r"no record of experiment 'f' where method='x'; it holds experiments: e"):
            store.export_jsonl(tmp_path / "e.jsonl", "f", {"method": "x"})
        with pytest.raises(StoreError, match=r"no record of experiment 'e' has a setting 'metod'; there are .*method"):
            store.export_jsonl(tmp_path / "e.jsonl", "e", {"metod": "mezo"})


def test_a_record_too_long_for_any_split_is_said_to_be(tmp_path, small_limit):
    with Store(tmp_path / "s.sqlite") as store:
        store.put(rec(1, result={"trace": [0.1] * 8000}))
        with pytest.raises(StoreError, match="no single config entry"):
            store.export_jsonl(tmp_path / "e.jsonl", "e")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text.replace('"steps":1', '"steps":'), "line 2 of .* is not a record"),
        (lambda text: text.replace('{"i":1}', '{"i":2}'), "it was edited"),
        (lambda text: text[text.index("\n") + 1 :], "line 1 of .* is not a record .KeyError"),
    ],
)
def test_damaged_export_is_refused_whole(tmp_path, damage, said):
    with Store(tmp_path / "s.sqlite") as store:
        store.put(rec(1))
        store.export_jsonl(tmp_path / "e.jsonl", "e")
    (tmp_path / "bad.jsonl").write_text(damage((tmp_path / "e.jsonl").read_text()))
    with pytest.raises(StoreError, match=said):
        read_jsonl(tmp_path / "bad.jsonl")
    with Store(tmp_path / "t.sqlite") as store:
        with pytest.raises(StoreError, match=said):
            store.merge(tmp_path / "bad.jsonl")
        assert len(store) == 0


@pytest.mark.parametrize("part", [{"experiment": 1}, {"config": []}, {"result": [1]}, {"provenance": 5}])
def test_a_line_written_by_hand_is_taken_only_if_its_parts_are_what_readers_expect(part, tmp_path):
    row = {"experiment": "e", "config": {"i": 1}, "result": {"status": "ok"}, "provenance": {}, **part}
    (tmp_path / "hand.jsonl").write_text(json.dumps({**row, "key": config_key(row["config"])}) + "\n")
    with pytest.raises(StoreError, match=f"line 1 of .* is not a record .*{next(iter(part))}"):
        read_jsonl(tmp_path / "hand.jsonl")


def test_record_without_json_form_leaves_the_store_as_it_was(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        store.put(rec(1))
        with pytest.raises(ValueError, match="set"):
            store.put(Record("k", "e", {"i": {1}}, {}))
        assert len(store) == 1
