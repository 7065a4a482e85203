"""`GroupedMeZO` against directions written out as matrices and a set of perturbed weights for each group."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from helene import GroupedMeZO, Trajectory
from helene.evaluation.grouped import rows
from helene.evaluation.grouped.factors import Factors
from tests.optimizers.groups.grouped_models import (
    EXAMPLES,
    LENGTH,
    MODELS,
    Plain,
    batch_of,
    gemma,
    llama,
    losses,
    made,
    reference_gradient,
    written_out,
)

LR, EPS = 0.01, 1e-3


def share(batch, labels, g, groups):
    """Group g's part of a batch."""
    size = EXAMPLES // groups
    part = slice(g * size, (g + 1) * size)
    return {name: value[part] for name, value in batch.items()}, labels[part]


def moves_as(optimizer, step, closure, loss, *, groups, rank=1, signs=False, tolerance=1e-8):
    """Make a step, and assert that it is that of the reference.

    In float64 losses differ by 1e-14, slopes by 1e-14 / eps, so that steps differ by 1e-10 of the largest move.
    """
    directions = written_out(optimizer, step, groups, rank, signs)
    expected = reference_gradient(loss, optimizer, directions, EPS)
    start = [t.tensor.detach().clone() for t in optimizer.targets]
    optimizer.step(closure)
    for target, old, g in zip(optimizer.targets, start, expected, strict=True):
        moved = (LR * g).abs().max()
        assert moved > 0, target.name
        assert (target.tensor - (old - LR * g)).abs().max() <= tolerance * moved, target.name


@pytest.mark.parametrize(
    ("groups", "rank", "law"), [(1, 1, "gaussian"), (2, 1, "rademacher"), (3, 2, "gaussian"), (6, 1, "gaussian")]
)
@pytest.mark.parametrize("make", MODELS, ids=lambda m: m.__name__)
def test_a_step_is_that_of_perturbed_copies(make, groups, rank, law):
    model, (batch, labels) = made(make), batch_of()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        optimizer = GroupedMeZO(
            model.named_parameters(), LR, groups=groups, rank=rank, distribution=law, model=model, eps=EPS, seed=7
        )
        for step in (1, 2):
            moves_as(
                optimizer,
                step,
                lambda: losses(model, batch, labels),
                lambda g: losses(model, *share(batch, labels, g, groups)).mean(),
                groups=groups,
                rank=rank,
                signs=law == "rademacher",
            )


def test_group_losses_and_example_losses_make_one_step():
    model, (batch, labels) = made(Plain), batch_of()
    twin = copy.deepcopy(model)
    for module, whole in ((model, False), (twin, True)):
        optimizer = GroupedMeZO(module.named_parameters(), LR, groups=3, eps=EPS)

        def closure(module=module, whole=whole):
            found = losses(module, batch, labels)
            return found.view(3, -1).mean(dim=1) if whole else found

        optimizer.step(closure)
        assert optimizer.noise.estimate() is None
        assert len(optimizer.noise.moments) == (0 if whole else 1)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert (p - q).abs().max() <= 1e-9 * LR


class Gathering(nn.Module):
    """A head that runs on some places alone, which it is told of."""

    def __init__(self, tells=True):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(4, 9)
        self.tells = tells

    def forward(self, ids, site_rows, places):
        x = torch.tanh(self.embed(ids))
        with rows.whole():
            x = x[site_rows, places][None]
            if self.tells:
                rows.gather(site_rows, len(ids))
            return self.head(self.norm(x))[0]


def test_places_that_were_gathered_keep_their_rows_group():
    torch.manual_seed(1)
    model, ids = Gathering().double(), torch.randint(0, 9, (EXAMPLES, LENGTH))
    site_rows = torch.tensor([5, 0, 3, 3, 1, 2, 4, 0, 0])
    places = torch.arange(9) % LENGTH

    def closure(start=0, end=EXAMPLES):
        values = model(ids, site_rows, places).square().sum(dim=1)
        return torch.zeros(EXAMPLES).double().index_add(0, site_rows, values)[start:end]

    optimizer = GroupedMeZO(model.named_parameters(), LR, groups=3, rank=2, eps=EPS)
    moves_as(optimizer, 1, closure, lambda g: closure(2 * g, 2 * g + 2).mean(), groups=3, rank=2)
    assert rows.gathered() is None
    model.tells = False
    with pytest.raises(
        ValueError, match=r"norm.weight is read by torch's layer_norm, .* \(1, 9\) where the batch has 6"
    ):
        GroupedMeZO(model.named_parameters(), LR, groups=3).step(closure)


def test_directions_depend_on_their_group_alone_and_chunks_are_parts():
    optimizer = GroupedMeZO(made(Plain).named_parameters(), groups=2)
    few, many = (Factors(optimizer.targets, groups=groups, rank=2).draw(5, 9) for groups in (2, 5))
    weights = [0.3, -1.2, 0.0, 0.0, 0.0]
    a, b = few.combination(weights[:2]), many.combination(weights)
    for i, target in enumerate(optimizer.targets):
        assert torch.equal(few.of(i).left, many.of(i).left[:2])
        size = target.tensor.numel()
        whole = a(i, 0, size)
        pieces = torch.cat([a(i, start, min(start + 7, size)) for start in range(0, size, 7)])
        for other in (pieces, b(i, 0, size)):
            assert (whole - other).abs().max() <= 1e-14 * whole.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_run_is_its_seed_and_scalars(dtype, tmp_path):
    """Recorded with groups, momentum and stochastic rounding; replayed without data, to the bit."""
    model, (batch, labels) = made(llama, dtype), batch_of()
    fresh = copy.deepcopy(model)
    options = {"groups": 3, "momentum": 0.5, "weight_decay": 0.1, "rounding": "stochastic", "eps": 1e-2}
    optimizer = GroupedMeZO(model.named_parameters(), 0.1, **options)
    recorded = Trajectory.record(optimizer)
    for _ in range(4):
        optimizer.step(lambda: losses(model, batch, labels).float())
    recorded.save(tmp_path / "run.npz")
    assert [len(s) for s in recorded.scalars] == [3] * 4
    Trajectory.load(tmp_path / "run.npz").replay(GroupedMeZO(fresh.named_parameters(), 9.0, groups=2, momentum=0.9))
    assert all(map(torch.equal, model.parameters(), fresh.parameters()))


def test_auto_chooses_from_the_noise_and_replays():
    """The most with two examples each while the noise is not known; one where it is all that slopes show."""
    model, (batch, labels) = made(Plain), batch_of()
    fresh = copy.deepcopy(model)
    optimizer = GroupedMeZO(model.named_parameters(), 1e-3, groups="auto")
    recorded, seen = Trajectory.record(optimizer), []
    for _ in range(4):
        optimizer.step(lambda: losses(model, batch, labels))
        seen.append(optimizer.param_groups[0]["groups"])
    assert seen == [2, 3, 3, 3]
    recorded.replay(GroupedMeZO(fresh.named_parameters(), 9.0))
    assert all(map(torch.equal, model.parameters(), fresh.parameters()))
    optimizer.noise.moments.extend([(1.0, 1e6), (1.1, 0.9e6)] * 40)
    optimizer.param_groups[0]["step"], optimizer.trajectory = 49, None
    for groups in (3, 1):  # looked at every 50 steps
        optimizer.step(lambda: losses(model, batch, labels))
        assert optimizer.param_groups[0]["groups"] == groups
    stored = pickle.loads(pickle.dumps(optimizer))
    assert stored.chooses
    assert len(stored.noise.moments) == len(optimizer.noise.moments)
    assert optimizer.diagnostics()["noise"]["suggested_groups"] == 1


def test_the_estimate_is_compared_with_the_gradient():
    """Examples are alike, so the cosine is about M^-1/2, M ≈ d/G + 1; theory/proofs/algorithm/groups.md."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(9, 70), nn.Linear(70, 1)).double(), torch.randn(1, 9).double().expand(600, 9)
    optimizer = GroupedMeZO(model.named_parameters(), groups=600)
    *_, row = optimizer.compare_gradient(lambda: model(x).squeeze(1) ** 2)
    assert row["dimension"] == 771
    assert abs(row["cosine"] - (771 / 600 + 1) ** -0.5) <= 0.1
    assert optimizer.steps_made == 0


class Batched(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.mix(x))


class Shared(nn.Module):
    """Reads a matrix through another tensor of the same memory."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.alias = self.mix.weight.data

    def forward(self, x):
        return F.linear(x, self.alias, self.mix.bias)


def attention():
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    return Lambda(layer, lambda x: layer(x[:, None], x[:, None], x[:, None])[0][:, 0])


class Lambda(nn.Module):
    def __init__(self, module, call):
        super().__init__()
        self.module, self.call = module, call

    def forward(self, x):
        return self.call(x)


def lstm():
    layer = nn.LSTM(4, 4, batch_first=True)
    return Lambda(layer, lambda x: layer(x[:, None])[0][:, 0])


def product():
    layer = nn.Linear(4, 4)
    return Lambda(layer, lambda x: x @ (2 * layer.weight))


def transposed():
    layer = nn.Linear(4, 4, bias=False)
    return Lambda(layer, lambda x: x @ layer.weight.T)


def columns():
    layer = nn.Linear(6, 6)
    return Lambda(layer, lambda x: layer(x.T).T)


def by_rows():
    layer = nn.Linear(4, 8)
    return Lambda(
        layer,
        lambda x: layer(x.view(3, 2, 4).transpose(0, 1).reshape(6, 4)).view(2, 3, 8).transpose(0, 1).reshape(6, 8),
    )


def in_place():
    layer = nn.Linear(4, 4)

    def call(x):
        layer.bias.mul_(2.0)
        return layer(x)

    return Lambda(layer, call)


def batch_norm_frozen():
    model = Batched()
    model.norm.requires_grad_(False)
    return model


REFUSED = {
    "batch_norm": (Batched, "parameter norm.weight is read by torch's batch_norm"),
    "statistics": (batch_norm_frozen, "examples are not apart"),
    "group_norm": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4)),
        "1.weight is read by torch's group_norm",
    ),
    "attention": (attention, "in_proj_weight is read by torch's multi_head_attention_forward"),
    "lstm": (lstm, "weight_ih_l0 is read by torch's lstm"),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), "original1 is read by torch's"),
    "product": (product, "weight is read by torch's mul"),
    "transposed": (transposed, "weight is read by torch's T,"),
    "out of sight": (Shared, "mix.weight are read out of sight"),
    "columns": (columns, "groups=3 does not divide 4; .* which sees axes"),
    "rows in another order": (by_rows, "examples are not apart .* or rows are not the first axis"),
    "in place": (in_place, "bias is read by torch's mul_"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_groups_have_no_share_in_is_refused_by_name(case):
    torch.manual_seed(0)
    make, text = REFUSED[case]
    model, x = make(), torch.randn(6, 4)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = GroupedMeZO(model.named_parameters(), 0.1, groups=3)
    with pytest.raises(ValueError, match=text):
        optimizer.step(lambda: model(x).square().sum(dim=1))
    assert optimizer.steps_made == 0
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            lambda y: y.mean(),
            "returned one number; with groups=3 it must return the loss of each example .* microbatches has one number",
        ),
        (lambda y: y, r"returned shape \(6, 4\)"),
        (lambda y: y[:4].sum(dim=1), r"groups=3 does not divide 4; .* \(the closure returned 4 losses\)"),
        (lambda y: None, "returned a NoneType"),
        (lambda y: y.sum(dim=1).repeat(2), "returned 12 losses of 6 rows"),
    ],
)
def test_losses_that_are_none_of_examples_are_refused(value, text):
    model, x = nn.Linear(4, 4), torch.randn(6, 4)
    with pytest.raises(ValueError, match=text):
        GroupedMeZO(model.named_parameters(), 0.1, groups=3).step(lambda: value(model(x)))


def test_a_batch_that_groups_do_not_divide_is_refused():
    model, x = nn.Linear(4, 4), torch.randn(7, 4)
    limit = "^groups must divide the number of examples, and groups=3 does not divide 7"
    with pytest.raises(ValueError, match=f"{limit}; take a divisor, groups='auto', or drop_last=True of the loader"):
        GroupedMeZO(model.named_parameters(), 0.1, groups=3).step(lambda: model(x).sum(dim=1))


def test_a_minibatch_drawn_in_the_closure_is_named():
    """A stream draws no random number when it is asked."""
    model, batches = nn.Linear(4, 4), iter(torch.randn(99, 6, 4))
    with pytest.raises(ValueError, match=r"closure draws another minibatch .*; draw it before the closure"):
        GroupedMeZO(model.named_parameters(), 0.1, groups=3).step(lambda: model(next(batches)).sum(dim=1))


def test_an_example_whose_loss_is_not_finite_moves_nothing():
    model, x = nn.Linear(4, 4), torch.randn(6, 4)
    x[4] = torch.inf
    optimizer = GroupedMeZO(model.named_parameters(), 0.1, groups=3)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(FloatingPointError, match="unchanged"):
        optimizer.step(lambda: model(x).sum(dim=1))
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize(
    "options", [{"groups": 0}, {"groups": 2.0}, {"groups": "all"}, {"rank": 0}, {"distribution": "sphere"}]
)
def test_options_out_of_range(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        GroupedMeZO(nn.Linear(2, 2).named_parameters(), **options)


def test_parameters_of_three_axes_and_compiled_models_are_refused():
    with pytest.raises(ValueError, match=r"weight has shape \(2, 2, 3\), directions of low rank"):
        GroupedMeZO(nn.Conv1d(2, 2, 3).named_parameters(), groups=2)
    model = nn.Linear(2, 2)
    model._compiled_call_impl = model._call_impl  # as torch.compile leaves it
    with pytest.raises(ValueError, match="compiled"):
        GroupedMeZO(model.named_parameters(), groups=2, model=model)


def test_no_parameter_is_copied_or_written_while_losses_are_evaluated():
    model, (batch, labels) = made(gemma), batch_of()
    places = [(p.data_ptr(), p._version) for p in model.parameters()]
    optimizer = GroupedMeZO(model.named_parameters(), groups=3)

    def closure():
        assert [(p.data_ptr(), p._version) for p in model.parameters()] == places
        return losses(model, batch, labels)

    optimizer.step(closure)
    assert optimizer.scratch_bytes() == 0
