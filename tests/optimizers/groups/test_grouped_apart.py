"""`GroupedMeZO` where examples are not apart, or only in some batches; what it keeps; ways to read a parameter."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import jvp
from torch.nn import functional as F

from helene import GroupedMeZO
from helene.engine.groups import GroupEngine
from helene.integrations.checkpoints import load_checkpoint, save_checkpoint
from tests.optimizers.groups.grouped_models import reference_gradient, written_out

LR, EPS, ROWS = 0.01, 1e-3, 8


def assert_moves_as(optimizer: GroupedMeZO, step: int, groups: int, closure: Any) -> None:
    """Make a step, and assert that it is that of a set of weights for each group; tolerance as in test_grouped."""
    size = ROWS // groups
    expected = reference_gradient(
        lambda g: closure()[g * size : (g + 1) * size].mean(), optimizer, written_out(optimizer, step, groups, 1), EPS
    )
    start = [t.tensor.detach().clone() for t in optimizer.targets]
    optimizer.step(closure)
    for target, old, g in zip(optimizer.targets, start, expected, strict=True):
        assert (target.tensor - (old - LR * g)).abs().max() <= 1e-8 * (LR * g).abs().max(), target.name


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 4).double()


@pytest.mark.parametrize("groups", [2, 4, 8])
def test_pairs_of_views_are_not_apart(groups: int) -> None:
    """Row i is compared with row i + 4, whose group's number may be even or odd like its own."""
    model, x = linear(), torch.randn(ROWS, 4).double()
    optimizer = GroupedMeZO(model.named_parameters(), LR, groups=groups, eps=EPS)
    with pytest.raises(ValueError, match="examples are not apart"):
        optimizer.step(lambda: (model(x) - model(x).roll(4, 0)).square().sum(dim=1))
    assert not optimizer.steps_made


@pytest.mark.parametrize("auto", [False, True])
def test_other_groups_are_looked_at_anew(auto: bool) -> None:
    """Four rows that share a mean lie in one group of two, in two of four."""
    model, x = linear(), torch.randn(ROWS, 4).double()

    def closure() -> Any:
        y = model(x).view(2, 4, 4)
        return (y - y.mean(dim=1, keepdim=True)).square().sum(dim=2).flatten()

    optimizer = GroupedMeZO(model.named_parameters(), LR, groups="auto" if auto else 2, eps=EPS)
    for _ in range(1 if auto else 2):
        optimizer.step(closure)
    optimizer.param_groups[0]["groups"] = 4
    with pytest.raises(ValueError, match="examples are not apart"):
        optimizer.step(closure)


class Places(nn.Module):
    """Places as nanoGPT looks them up: one axis, for all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places, self.head = nn.Embedding(9, 4), nn.Embedding(16, 4), nn.Linear(4, 9)

    def forward(self, ids: Any) -> Any:
        return self.head(torch.tanh(self.tokens(ids) + self.places(torch.arange(ids.shape[1]))))


@pytest.mark.parametrize("groups", [2, 8])
def test_places_that_rows_share_may_be_as_many_as_rows(groups: int) -> None:
    torch.manual_seed(0)
    model = Places().double()
    optimizer = GroupedMeZO(model.named_parameters(), LR, groups=groups, eps=EPS)
    for step, length in enumerate((5, 7, ROWS), 1):
        ids = torch.randint(0, 9, (ROWS, length))
        assert_moves_as(
            optimizer,
            step,
            groups,
            lambda ids=ids: F.cross_entropy(model(ids).transpose(1, 2), ids, reduction="none").mean(dim=1),
        )


def chosen_places(model: nn.Linear, x: Any, keep: Any) -> Any:
    """The mean over the places that a mask keeps, which alone the model sees."""
    rows = torch.arange(ROWS).repeat_interleave(x.shape[1])[keep.flatten()]
    return torch.zeros(ROWS).double().index_add(0, rows, model(x[keep]).square().sum(dim=1))


def test_places_chosen_by_the_batch_are_looked_at_anew() -> None:
    """Of 48 places 40 are kept, five a row as the optimizer takes them to be, but three of one row."""
    model, x = linear(), torch.randn(ROWS, 6, 4).double()
    first, keep = nn.Linear(4, 4).double(), torch.ones(ROWS, 6, dtype=torch.bool)
    parameters = [*model.named_parameters(), *((f"first.{n}", p) for n, p in first.named_parameters())]
    optimizer = GroupedMeZO(parameters, LR, groups=4, eps=EPS)
    for _ in range(2):
        optimizer.step(lambda: chosen_places(model, first(x), keep))
    keep[:, 5] = False
    keep[0, 3:] = False
    keep[4, :2], keep[5, 5], keep[6, 5] = True, True, True
    assert int(keep.sum()) == 40
    with pytest.raises(ValueError, match="examples are not apart"):
        optimizer.step(lambda: chosen_places(model, first(x), keep))


def test_rows_in_an_order_of_the_batch_are_found_at_a_power_of_two() -> None:
    model, x = linear(), torch.randn(ROWS, 4).double()
    order = torch.arange(ROWS)
    optimizer = GroupedMeZO(model.named_parameters(), LR, groups=4, eps=EPS)

    def closure() -> Any:
        y = model(x[order]).square().sum(dim=1)
        return torch.empty_like(y).index_copy(0, order, y)

    for _ in range(3):
        optimizer.step(closure)
    order = order.flip(0)
    with pytest.raises(ValueError, match="examples are not apart"):
        optimizer.step(closure)


def test_the_engine_looks_at_each_shape() -> None:
    model = linear()
    optimizer = GroupedMeZO(model.named_parameters(), LR, groups=4, eps=EPS)

    def loss(model: Any, batch: Any) -> Any:
        y = model(batch["x"])
        return (y - y.roll(4, 0)).square().sum(dim=1) if y.shape[0] > 8 else y.square().sum(dim=1)

    engine = GroupEngine(model, optimizer, loss, capture="repeat")
    for _ in range(5):
        engine.step({"x": torch.randn(8, 4).double()})
    with pytest.raises(ValueError, match="examples are not apart"):
        engine.step({"x": torch.randn(16, 4).double()})


def test_a_loss_that_is_a_parameter_and_one_axis_is_refused() -> None:
    model, x = nn.Linear(4, 1), torch.randn(ROWS, 4)
    frozen = nn.Linear(4, 1).requires_grad_(False)
    optimizer = GroupedMeZO(model.named_parameters(), LR, groups=2)
    with pytest.raises(ValueError, match="one axis, which may be rows or columns"):
        optimizer.step(lambda: (frozen(x).squeeze(1) + model.bias).square())


def test_what_auto_chooses_from_is_part_of_the_state(tmp_path: Any) -> None:
    x = torch.randn(ROWS, 4).double()

    def fresh() -> Any:
        model = linear()
        return model, GroupedMeZO(model.named_parameters(), LR, groups="auto", eps=EPS)

    def step(model: Any, optimizer: Any) -> Any:
        optimizer.step(lambda: model(x).square().sum(dim=1))
        return [optimizer.param_groups[0]["groups"], *(p.detach().clone() for p in model.parameters())]

    model, optimizer = fresh()
    step(model, optimizer)
    optimizer.noise.moments.extend([(1.0, 1e6), (1.1, 0.9e6)] * 40)
    optimizer.param_groups[0]["step"] = 50
    state, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    save_checkpoint(tmp_path / "whole", model, optimizer)
    groups, *expected = step(model, optimizer)
    assert groups == 1
    for by_file in (False, True):
        other, resumed = fresh()
        if by_file:
            load_checkpoint(tmp_path / "whole", other, resumed)
        else:
            other.load_state_dict(weights)
            resumed.load_state_dict(state)
        again, *found = step(other, resumed)
        assert again == 1
        assert all(map(torch.equal, found, expected))


class Numbers(nn.Module):
    """A number in float32 between layers in bfloat16, whose products it does not widen."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4).bfloat16(), nn.Linear(4, 4).bfloat16()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Any) -> Any:
        return self.two(self.one(x.bfloat16()) * self.scale)


def test_a_number_does_not_widen_what_it_multiplies() -> None:
    torch.manual_seed(0)
    model, dtypes = Numbers(), []
    model.two.register_forward_pre_hook(lambda _, args: dtypes.append(args[0].dtype))
    optimizer = GroupedMeZO(model.named_parameters(), LR, groups=2)
    optimizer.step(lambda: model(torch.ones(ROWS, 4)).float().square().sum(dim=1))
    assert set(dtypes) == {torch.bfloat16}


READS = {
    "linear by word": lambda m, x: F.linear(input=x, weight=m.weight, bias=m.bias),
    "matmul by word": lambda m, x: torch.matmul(input=x, other=m.weight) + m.bias,
    "mm by word": lambda m, x: torch.mm(x, mat2=m.weight) + m.bias,
    "addmm by word": lambda m, x: torch.addmm(input=m.bias, mat1=x, mat2=m.weight),
    "type's words": lambda m, x: m(x) * len({m.weight.type(), m.bias.type()}),
    "jvp of the input": lambda m, x: m(x) + jvp(m, (x,), (x,))[1],
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, of jvp
@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("name", READS)
def test_ways_to_read_a_parameter(name: str, groups: int) -> None:
    model, x = linear(), torch.randn(ROWS, 4).double()
    optimizer = GroupedMeZO(model.named_parameters(), LR, groups=groups, eps=EPS)
    assert_moves_as(optimizer, 1, groups, lambda: READS[name](model, x).square().sum(dim=1))


def test_one_group_may_read_a_matrix_transposed() -> None:
    model, x = linear(), torch.randn(ROWS, 4).double()
    optimizer = GroupedMeZO(model.named_parameters(), LR, groups=1, eps=EPS)
    assert_moves_as(optimizer, 1, 1, lambda: (x @ model.weight.T + model.bias).square().sum(dim=1))


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (lambda m, x: F.prelu(m(x), m.bias), "bias is read by torch's prelu"),
        (lambda m, x: m(x) * float(m.bias[0]), "bias is read by torch's __getitem__"),
        (lambda m, x: torch.addmm(m.bias, x, m.weight, alpha=0.5), "weight is read by torch's addmm with beta"),
    ],
)
def test_reads_that_are_refused_by_name(read: Any, text: str) -> None:
    model, x = linear(), torch.randn(ROWS, 4).double()
    with pytest.raises(ValueError, match=text):
        GroupedMeZO(model.named_parameters(), LR, groups=2).step(lambda: read(model, x).square().sum(dim=1))


def test_a_number_that_is_asked_for_is_refused_by_name() -> None:
    model = nn.Linear(4, 1)
    with pytest.raises(ValueError, match="bias is read by torch's __float__"):
        GroupedMeZO(model.named_parameters(), LR, groups=2).step(
            lambda: model(torch.ones(4, 4))[:, 0] * float(model.bias)
        )


def test_parameters_of_another_shape_get_other_directions() -> None:
    model, x = nn.Linear(4, 3).double(), torch.randn(ROWS, 4).double()
    optimizer = GroupedMeZO(model.named_parameters(), LR, groups=4, eps=EPS)
    optimizer.step(lambda: model(x).square().sum(dim=1))
    model.weight.data, model.bias.data = torch.randn(5, 4).double(), torch.randn(5).double()
    assert_moves_as(optimizer, 2, 4, lambda: model(x).square().sum(dim=1))


def test_a_later_loss_that_reads_no_parameter_is_refused() -> None:
    """With momentum the weights would go on moving; the third step is none that looks at reads."""
    model, frozen = linear(), linear().requires_grad_(False)
    optimizer = GroupedMeZO(model.named_parameters(), LR, groups=4, momentum=0.9, model=model)
    x = torch.randn(ROWS, 4).double()
    for _ in range(2):
        optimizer.step(lambda: model(x).square().sum(dim=1))
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ValueError, match="the loss reads none of the 2 trained parameters"):
        optimizer.step(lambda: frozen(x).square().sum(dim=1))
    assert all(map(torch.equal, before, model.parameters()))
