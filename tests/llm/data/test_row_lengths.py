"""Row lengths of captured steps against every choice there is."""

import argparse
import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import opt

from llm_bench.data.row_lengths import PackedSizes, length_of, row_lengths
from llm_bench.runs import session as sessions
from llm_bench.runs.environment import resolved
from llm_bench.runs.session import Session

NEEDS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 4)), min_size=1, max_size=12)


def cost(needs, lengths, capture):
    return sum(length_of(longest, lengths) * rows for longest, rows in needs) + capture * len(lengths)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(needs=NEEDS, capture=st.integers(0, 400))
def test_no_other_lengths_cost_less(needs, capture):
    found = row_lengths(needs, capture)
    assert all(length_of(longest, found) in found for longest, _ in needs)
    sizes = sorted({-(-longest // 8) * 8 for longest, _ in needs})
    every = (
        some for n in range(1, len(sizes) + 1) for some in itertools.combinations(sizes, n) if some[-1] == sizes[-1]
    )
    assert cost(needs, found, capture) == min(cost(needs, some, capture) for some in every)


def test_a_capture_is_paid_by_what_it_saves():
    needs = [(40, 16)] * 100 + [(64, 16)]
    assert row_lengths(needs, 0) == (40, 64)
    assert row_lengths(needs, 100 * 16 * 24 + 1) == (64,)


def test_batches_of_a_captured_run_have_its_lengths(env):
    """The shapes are those of the plan, whatever step comes first; without captured steps each batch has its own."""
    plain = resolved(opt(steps=40, batch_size=6), env)
    config = dataclasses.replace(plain, engine=True)
    session = Session(config, env)
    train = session.tokens(config).train

    def length(config, rows):
        return session.batch(config, rows)["input_ids"].shape[1]

    rows = [list(range(start, start + 6)) for start in range(0, 42, 6)]
    needs = [max(len(row) for i in some for row in train[i].rows) for some in rows]
    assert [length(plain, some) for some in rows] == [-(-need // 8) * 8 for need in needs]
    grouped = dataclasses.replace(config, method="mezo-grouped")
    captured = {length(grouped, some) for some in rows}
    (only,) = session._found_sizes.values()
    assert len(only.lengths) == 1, "forty steps of a few tokens pay for one capture"
    assert captured == set(only.lengths)
    assert length(dataclasses.replace(grouped, row_length=200), rows[0]) == 200


def test_captured_steps_run_on_packed_tokens(env):
    """One size for the whole plan here; the loss is that of the padded rows, and methods that need rows have them."""
    plain = resolved(opt(steps=40, batch_size=6), env)
    config = dataclasses.replace(plain, engine=True)
    session, rows = Session(config, env), [list(range(start, start + 6)) for start in range(0, 42, 6)]
    found = [session.batch(config, some) for some in rows]
    assert len({batch["input_ids"].shape for batch in found}) == 1
    (sizes,) = session._found_sizes.values()
    assert sizes.packed.count == 1
    for some, batch in zip(rows, found, strict=True):
        tokens = sum(len(row) for i in some for row in session.tokens(config).train[i].rows)
        assert tokens <= batch["input_ids"].numel() < batch["slots"].numel()
        with torch.no_grad():
            ours, padded = (session.loss(c)(session.model.module, session.batch(c, some)) for c in (config, plain))
        torch.testing.assert_close(ours, padded, rtol=1e-5, atol=1e-6)
    assert "slots" not in session.batch(dataclasses.replace(config, method="mezo-grouped"), rows[0])
    assert "slots" not in session.batch(dataclasses.replace(config, method="hizoo"), rows[0])
    session._packs = False
    assert "slots" not in session.batch(config, rows[0])


@pytest.mark.parametrize("method", ["mezo", "mezo-grouped"])
def test_ranks_have_equal_shares_of_one_shape(method, env, monkeypatch):
    """The mean of their losses is the batch's; packed, too, though shares have unequal numbers of tokens."""
    hyper = {"groups": 2} if method == "mezo-grouped" else {}
    whole = resolved(opt(method=method, tuning="full", steps=40, batch_size=6, hyper=hyper), env)
    shared = dataclasses.replace(whole, ranks=2, engine=True)
    session, rows = Session(whole, env), [list(range(start, start + 6)) for start in range(0, 42, 6)]
    shapes, tokens = set(), set()
    for some in rows:
        parts = []
        for rank in range(2):
            monkeypatch.setattr(sessions, "Ranks", lambda rank=rank: argparse.Namespace(rank=rank))
            parts.append(session.batch(shared, some))
            tokens.add(int(parts[-1]["attention_mask"].sum()))
        monkeypatch.undo()
        shapes |= {tuple((name, tensor.shape) for name, tensor in part.items()) for part in parts}
        assert torch.cat([part["labels"] for part in parts]).tolist() == session.batch(whole, some)["labels"].tolist()
        with torch.no_grad():
            losses = [session.loss(shared)(session.model.module, part).mean() for part in parts]
            expected = session.loss(whole)(session.model.module, session.batch(whole, some)).mean()
        torch.testing.assert_close(torch.stack(losses).mean(), expected, rtol=1e-5, atol=1e-6)
    assert len(shapes) == 1
    assert len(tokens) > 1
    assert ("slots" in parts[0]) == (method == "mezo")
    with pytest.raises(ValueError, match="a batch of 5 rows cannot be shared by 2 ranks; take a multiple of 2"):
        session.batch(shared, range(5))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=4), min_size=1, max_size=12))
def test_packed_sizes_hold_every_batch(batches):
    needs = [(max(lengths), len(lengths), sum(lengths)) for lengths in batches]
    sizes = PackedSizes(needs)
    shapes = {(sizes.length(longest), sizes.total(longest, tokens)) for longest, _, tokens in needs}
    assert len(shapes) == sizes.count
    assert all(
        sizes.length(longest) >= longest and sizes.total(longest, tokens) >= tokens for longest, _, tokens in needs
    )
    assert sizes.total(65, 7) == 8, "a batch that was not planned has its own"
