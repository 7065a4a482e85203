"""The loss is read at theta ± eps z rounded once, by every module, and theta keeps its bits."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import helene
from helene import noise
from helene.evaluation.directions import CHUNK, Direction, Target, write_perturbed
from helene.evaluation.probe import Probe

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
EPS = 1e-2
DIRECTION = Direction(seed=3, step=1)


def targets_of(module):
    return [Target(p, noise.parameter_id(n), n) for n, p in module.named_parameters() if p.requires_grad]


def moved(module, radius, direction=DIRECTION):
    """Slow reference: a copy of the module whose trained parameters are overwritten by theta + radius z."""
    twin = copy.deepcopy(module)
    for name, p in twin.named_parameters():
        if p.requires_grad:
            z = direction.chunk(noise.parameter_id(name), 0, p.numel(), p.device).view(p.shape)
            wide = torch.float64 if p.dtype == torch.float64 else torch.float32
            p.data = torch.add(p.detach().to(wide), z.to(wide), alpha=radius).to(p.dtype)
    return twin


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.inner(self.scale * self.inner(x))


class Outside(nn.Module):
    """Reads a child's weight without calling the child."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.other = nn.Linear(4, 4)

    def forward(self, x):
        return self.other(nn.functional.linear(x, self.inner.weight, self.inner.bias))


class View(nn.Module):
    """Returns a view of its parameter, as modules for positions do."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, 4))

    def forward(self, length):
        return self.table[:length]


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.positions, self.first, self.last = View(), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        positions = self.positions(len(x))
        return self.last(self.first(x) + positions)


class Padded(nn.Module):
    """Torch's fast path turns padded batches into nested tensors, unless hooks are in its way."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 1).eval()

    def forward(self, x):
        return self.encoder(x, src_key_padding_mask=torch.tensor([[False, False, True], [False, False, False]]))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 2)
        self.out.weight.requires_grad_(False)

    def forward(self, x):
        return self.out(self.norm(x))


def transposed():
    module = nn.Linear(4, 4)
    module.weight = nn.Parameter(torch.randn(4, 4).t())
    return module


MODELS = {
    "linear": (lambda: nn.Linear(4, 3), lambda: torch.randn(5, 4)),
    "tied": (Tied, lambda: torch.tensor([1, 2, 6])),
    "called twice": (Twice, lambda: torch.randn(5, 4)),
    "batch norm and frozen": (Normed, lambda: torch.randn(5, 4)),
    "not contiguous": (transposed, lambda: torch.randn(5, 4)),
    "attention": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0),
        lambda: torch.randn(2, 3, 4),
    ),
    "recurrent": (lambda: nn.LSTM(4, 3), lambda: torch.randn(5, 4)),
    "reparametrized": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), lambda: torch.randn(5, 4)),
    "read outside": (Outside, lambda: torch.randn(5, 4)),
    "view returned": (Positions, lambda: torch.randn(5, 4)),
}
READ_OUTSIDE = {"attention", "read outside", "view returned"}


def setting(name, dtype=torch.float32):
    torch.manual_seed(0)
    build, data = MODELS[name]
    module, x = build().to(dtype), data()
    x = x.to(dtype) if x.is_floating_point() else x

    def loss_of(m):
        out = m(x)
        return (out[0] if isinstance(out, tuple) else out).square().mean()

    return module, loss_of


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("per_module", [False, True])
def test_every_module_reads_the_perturbed_values(name, per_module):
    """Oracle: a moved deep copy, to the bit."""
    module, loss_of = setting(name)
    before = copy.deepcopy(module.state_dict())
    probe = Probe(targets_of(module), module if per_module else None)
    expected = {radius: loss_of(moved(module, radius)) for radius in (EPS, -EPS)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            for radius in (EPS, -EPS):
                assert torch.equal(probe.loss(lambda: loss_of(module), DIRECTION, radius), expected[radius].detach())
    reasons = [str(w.message) for w in caught]
    assert len(reasons) == (per_module and name in {*READ_OUTSIDE, "batch norm and frozen"})
    for said in reasons:
        if name in READ_OUTSIDE:
            assert "read outside their own module's forward" in said
            assert "bytes" in said
        else:
            assert "changes the model's buffer norm.num_batches_tracked" in said
    after = module.state_dict()
    buffers = {n for n, _ in module.named_buffers()}
    assert all(torch.equal(before[k], after[k]) for k in before if k not in buffers)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_module", [False, True])
def test_the_copy_is_rounded_once(dtype, per_module):
    module, loss_of = setting("linear", dtype)
    probe = Probe(targets_of(module), module if per_module else None)
    loss = probe.loss(lambda: loss_of(module), DIRECTION, EPS)
    assert loss.dtype == dtype
    assert torch.equal(loss, loss_of(moved(module, EPS)).detach())


@pytest.mark.parametrize("dtype", DTYPES)
def test_perturbed_copy_matches_exact_arithmetic(dtype):
    """Oracle: float64; the sum is done in float32 (one product, one sum: 2^-23 of the operands), then rounded once."""
    p = nn.Parameter(torch.randn(CHUNK + 3, dtype=torch.float64).mul(0.02).to(dtype))
    out = torch.empty_like(p)
    write_perturbed(out.detach(), p.detach(), 5, DIRECTION, 1e-3)
    z = DIRECTION.chunk(5, 0, p.numel(), p.device).double()
    exact = p.detach().double() + 1e-3 * z
    work = 2.0**-53 if dtype == torch.float64 else 2.0**-24
    bound = torch.finfo(dtype).eps / 2 * exact.abs() + 2 * work * (exact.abs() + 1e-3 * z.abs())
    bound += torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps  # half an ulp of a subnormal float16
    assert ((out.detach().double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("per_module", [False, True])
def test_theta_is_bit_equal_after_an_exception(per_module):
    module, loss_of = setting("called twice")
    module.append = None
    pointers = [p.data_ptr() for p in module.parameters()]
    before = copy.deepcopy(module.state_dict())
    probe = Probe(targets_of(module), module if per_module else None)

    def fails():
        loss_of(module)
        raise KeyError("closure")

    class Stop(nn.Module):
        def forward(self, x):
            raise KeyError("module")

    with pytest.raises(KeyError, match="closure"):
        probe.loss(fails, DIRECTION, EPS)
    inner, module.inner = module.inner, nn.Sequential(module.inner, Stop())
    with pytest.raises(KeyError, match="module"):
        Probe(targets_of(module), module if per_module else None).loss(lambda: loss_of(module), DIRECTION, EPS)
    module.inner = inner
    assert [p.data_ptr() for p in module.parameters()] == pointers
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


def test_scratch_is_one_module_with_the_model_and_all_without():
    """Bytes as documented: 64-byte alignment is the only overhead."""
    module = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])
    x = torch.randn(2, 64)
    per_layer = 64 * 64 * 4 + 64 * 4
    for model, expected in ((module, per_layer), (None, 8 * per_layer)):
        probe = Probe(targets_of(module), model)
        for _ in range(2):
            probe.loss(lambda: module(x).mean(), DIRECTION, EPS)
        assert probe.scratch.num_bytes == expected


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:encoder.*read outside their own module")
def test_all_losses_take_the_path_with_hooks():
    """L(theta) of a one-sided estimate and L(theta + 0 z) are one number; torch's fast path gives another."""
    torch.manual_seed(0)
    module, x = Padded(), torch.randn(2, 3, 4)
    probe = Probe(targets_of(module), module)
    at_zero = probe.loss(lambda: module(x).square().mean(), DIRECTION, 0.0)
    assert torch.equal(probe.loss_here(lambda: module(x).square().mean()), at_zero)


def test_parameters_that_only_a_later_loss_reads():
    """Read outside their module, once the first loss has passed them by."""
    torch.manual_seed(0)
    module, x = nn.ModuleDict({"first": nn.Linear(4, 1), "second": nn.Linear(4, 1)}), torch.randn(5, 4)
    probe = Probe(targets_of(module), module)

    def second(m):
        return nn.functional.linear(x, m["second"].weight, m["second"].bias).square().mean()

    with pytest.warns(UserWarning, match=r"second.weight, second.bias: not read by the first loss.*\(20 bytes\)"):
        probe.loss(lambda: module["first"](x).square().mean(), DIRECTION, EPS)
    found = probe.loss(lambda: second(module), DIRECTION, EPS)
    assert torch.equal(found, second(moved(module, EPS)).detach())


def test_a_tied_weight_one_of_whose_modules_never_runs():
    """As of encoder-decoders, whose own embedding stands beside those of both halves."""
    torch.manual_seed(0)
    module, ids = nn.ModuleDict({name: nn.Embedding(5, 3) for name in ("shared", "encoder")}), torch.tensor([1, 4])
    module["encoder"].weight = module["shared"].weight
    probe = Probe(targets_of(module), module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = probe.loss(lambda: module["encoder"](ids).square().mean(), DIRECTION, EPS)
    assert torch.equal(found, moved(module, EPS)["encoder"](ids).square().mean().detach())


def test_parameters_that_are_not_the_models_and_that_no_loss_reads():
    """Another model's weights are told of; a temperature that the loss reads itself is not."""
    torch.manual_seed(0)
    model, other, temperature = nn.Linear(3, 3), nn.Linear(3, 3), nn.Parameter(torch.ones(()))
    named = [*model.named_parameters(), ("temperature", temperature)]
    x = torch.randn(4, 3)

    def loss():
        return (model(x) / temperature).square().mean()

    optimizer = helene.MeZO(named, 0.1, model=model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step(loss)
    optimizer.add_param_group({"params": [("other", other.weight), ("empty", nn.Parameter(torch.ones(0)))]})
    with pytest.warns(UserWarning, match=r"^other: not the model's, and not read by the first loss.*leave it out"):
        optimizer.step(loss)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "weight", nn.Parameter(m.weight.detach().clone())),
        lambda m: nn.utils.parametrizations.weight_norm(m),
    ],
    ids=["replaced", "reparametrized"],
)
@pytest.mark.parametrize("number", [1, 3, 4])
def test_parameters_that_the_model_has_no_longer(change, number):
    module, loss_of = setting("linear")
    probe = Probe(targets_of(module), module)
    for radius in (EPS, -EPS, EPS, -EPS)[:number]:  # the second pair as where a step is made again
        probe.loss(lambda: loss_of(module), DIRECTION, radius)
    before = module.bias.detach().clone()
    change(module)
    with pytest.raises(ValueError, match=r"parameters weight are no longer those of the model.*anew"):
        probe.loss(lambda: loss_of(module), DIRECTION, EPS)
    assert torch.equal(module.bias, before)


@pytest.mark.parametrize("number", [1, 3, 4])
def test_a_parameter_of_another_shape_at_the_same_address(number):
    """The next probe's copy has that shape, also where a step is made again."""
    layer = nn.Linear(4, 6)
    probe = Probe(targets_of(layer), layer)
    for radius in (EPS, -EPS, EPS, -EPS)[:number]:
        probe.loss(lambda: layer(torch.ones(1, 4)).sum(), DIRECTION, radius)
    layer.weight.data, layer.bias.data = layer.weight.data[:3], layer.bias.data[:3]
    shapes = []

    def closure():
        shapes.append(layer.weight.shape)
        return layer(torch.ones(1, 4)).sum()

    smaller = nn.Linear(4, 3)
    smaller.load_state_dict(layer.state_dict())
    expected = Probe(targets_of(smaller), smaller).loss(lambda: smaller(torch.ones(1, 4)).sum(), DIRECTION, EPS)
    assert torch.equal(probe.loss(closure, DIRECTION, EPS), expected)
    assert shapes == [(3, 4)]


def test_inference_mode_within_the_closure():
    module, loss_of = setting("called twice")
    probe = Probe(targets_of(module), module)

    def closure():
        with torch.inference_mode():
            return loss_of(module)

    for radius in (EPS, -EPS):
        assert torch.equal(probe.loss(closure, DIRECTION, radius), loss_of(moved(module, radius)).detach())


@pytest.mark.parametrize("value", [0.1, 3, True, torch.tensor(3)])
def test_numbers_that_are_not_tensors_keep_their_precision(value):
    p = nn.Parameter(torch.ones(3))
    loss = Probe([Target(p, 1, "w")]).loss(lambda: value, DIRECTION, EPS)
    assert loss.dtype == torch.float64
    assert loss.item() == value


def test_a_compiled_model_gets_full_copies():
    module, loss_of = setting("linear")
    expected = loss_of(moved(module, EPS)).detach()
    compiled = torch.compile(module, backend="eager")
    with pytest.warns(UserWarning, match="compiled"):
        probe = Probe(targets_of(module), compiled)
    assert torch.equal(probe.loss(lambda: loss_of(compiled), DIRECTION, EPS), expected)


def test_an_alias_that_no_copy_reaches_is_an_error():
    p = nn.Parameter(torch.ones(3))
    alias = p.data
    with pytest.raises(ValueError, match=r"w are read through another tensor.*read the parameter itself"):
        Probe([Target(p, 1, "w")]).loss(lambda: (alias * 2).sum(), DIRECTION, EPS)


def test_views_of_one_buffer_are_told_apart():
    """Flat storage is common; a frozen neighbour in the same storage may be read as it is."""
    flat = torch.ones(6)
    trained, frozen = nn.Parameter(flat[:3]), nn.Parameter(flat[3:], requires_grad=False)
    loss = Probe([Target(trained, 1, "w")]).loss(lambda: (trained * frozen).sum(), DIRECTION, EPS)
    assert loss != 3


def test_autocast_does_not_reuse_the_first_probes_weights():
    """Autocast caches cast weights by tensor; both probes run inside one autocast region."""
    module, loss_of = setting("linear")
    probe = Probe(targets_of(module))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = [probe.loss(lambda: loss_of(module), DIRECTION, radius) for radius in (0.5, -0.5)]
        expected = [loss_of(moved(module, radius)).detach() for radius in (0.5, -0.5)]
    assert all(torch.equal(a, b) for a, b in zip(losses, expected, strict=True))


def test_modes_and_generators_are_untouched():
    module, loss_of = setting("linear")
    module.eval()
    state = torch.get_rng_state()
    Probe(targets_of(module), module).loss(lambda: loss_of(module), DIRECTION, EPS)
    assert not module.training
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, ValueError, "returned None"),
        (torch.ones(2), ValueError, r"shape \(2,\)"),
        (torch.ones((), dtype=torch.complex64), ValueError, "complex64"),
        ("loss", ValueError, "returned a str"),
        (float("nan"), FloatingPointError, "nan"),
        (torch.tensor(float("inf")), FloatingPointError, "inf"),
    ],
)
def test_bad_losses(value, kind, text):
    p = nn.Parameter(torch.ones(3))
    with pytest.raises(kind, match=text):
        Probe([Target(p, 1, "w")]).loss(lambda: value, DIRECTION, EPS)
    assert torch.equal(p.data, torch.ones(3))
