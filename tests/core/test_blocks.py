"""Copies by block: whatever the order of modules and the room, every forward reads theta + eps z, and theta stays."""

from __future__ import annotations

import copy
import itertools
import random
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helene import MeZO, noise
from helene.evaluation import blocks
from helene.evaluation.directions import Direction, Target
from helene.evaluation.layouts import Layout, lay_out, outermost
from helene.evaluation.probe import Probe


class Tree(nn.Module):
    """Parameters of its own, read before, between and after its children, some of which others share."""

    def __init__(self, draw: random.Random, shared: list[nn.Parameter], depth: int) -> None:
        super().__init__()
        size = draw.choice([1, 3, 16, 40])
        self.own = nn.Parameter(torch.randn(size))
        if draw.random() < 0.4:
            self.lent = draw.choice(shared)
        count = draw.randint(0, 3) if depth else 0
        self.children_ = nn.ModuleList(Tree(draw, shared, depth - 1) for _ in range(count))
        shared.append(self.own)

    def forward(self, x: Tensor, order: random.Random) -> Tensor:
        x = x + self.own.mean()
        children = list(self.children_)
        if order.random() < 0.3:
            order.shuffle(children)
        for child in children:
            x = child(torch.tanh(x), order) * self.own.square().mean()
            if hasattr(self, "lent"):
                x = x + self.lent.sin().mean()
        return x - self.own.std(unbiased=False)


@pytest.mark.parametrize("seed", range(12))
def test_every_order_reads_the_perturbed_values(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: a model whose parameters are overwritten, to the bit. Modules change places, blocks are of any size."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    model = Tree(draw, [nn.Parameter(torch.ones(2))], depth=3)
    room = draw.choice([0, 200, 500, 1 << 12])
    monkeypatch.setattr(blocks, "least_bytes", lambda device: room)
    targets = [Target(p, noise.parameter_id(name), name) for name, p in model.named_parameters()]
    kept = [t.tensor.detach().clone() for t in targets]
    probe = Probe(targets, model)
    for step in range(12):
        direction = Direction(seed, step)
        radius = draw.choice([1e-2, -1e-2])
        order = 0 if draw.random() < 0.6 else step  # often that of the last one
        twin = copy.deepcopy(model)
        for (name, p), theta in zip(twin.named_parameters(), kept, strict=True):
            z = direction.chunk(noise.parameter_id(name), 0, p.numel(), p.device)
            p.data = torch.add(theta, z, alpha=radius)
        with torch.no_grad():
            expected = twin(torch.ones(()), random.Random(order))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = probe.loss(lambda n=order: model(torch.ones(()), random.Random(n)), direction, radius)
        assert torch.equal(got, expected)
        assert all(torch.equal(t.tensor, theta) for t, theta in zip(targets, kept, strict=True))
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    sizes = probe._copies.sizes
    assert probe.scratch.num_bytes <= max(_deepest(model, targets, sizes), min(sum(sizes), room))


def _deepest(model: Tree, targets: list[Target], sizes: list[int]) -> int:
    """Bytes of the largest set of parameters whose modules are nested."""
    index = {id(t.tensor): i for i, t in enumerate(targets)}

    def below(module: Tree, held: frozenset[int]) -> int:
        held = held | {index[id(p)] for p in module.parameters(recurse=False)}
        return max([sum(sizes[i] for i in held), *(below(child, held) for child in module.children_)])  # type: ignore[arg-type]

    return below(model, frozenset())


def _held_in_turn(layout: Layout, owned: list[list[int]], sizes: list[int]) -> list[set[int]]:
    """What is copied in each block; an error if a module runs without its copies, or copies overlap."""
    pointed: dict[int, tuple[int, int]] = {}
    seen: list[set[int]] = []
    running: list[int] = []
    for position, event in enumerate(layout.events):
        opening = layout.openings.get(position)
        if opening is not None:
            for i in opening.left:
                pointed.pop(i, None)
            end = opening.start
            for i in opening.indices:
                assert i not in pointed
                pointed[i] = end, end + sizes[i]
                end += sizes[i]
            spans = sorted(pointed.values())
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
            seen.append(set(opening.indices))
        if event >= 0:
            running.append(event)
        else:
            running.remove(-1 - event)
        assert {i for k in running for i in owned[k]} <= pointed.keys()
    return seen


def test_blocks_fill_the_room_and_keep_what_is_running() -> None:
    """A module (0) around three others of 10 bytes each; the first and the last of these share a parameter."""
    owned, sizes = [[0], [1, 2], [3], [1, 4]], [10] * 5
    events = [0, 1, -2, 2, -3, 3, -4, -1]
    assert _held_in_turn(lay_out(events, owned, sizes, 0, 50), owned, sizes) == [{0, 1, 2, 3, 4}]
    assert _held_in_turn(lay_out(events, owned, sizes, 0, 40), owned, sizes) == [{0, 1, 2, 3}, {1, 4}]
    assert _held_in_turn(lay_out(events, owned, sizes, 7, 40), owned, sizes) == [{0, 1, 2}, {3}, {1, 4}]
    tight = lay_out(events, owned, sizes, 0, 1)
    assert _held_in_turn(tight, owned, sizes) == [{0}, {1, 2}, {3}, {1, 4}]
    assert [opening.start for opening in tight.openings.values()] == [0, 10, 10, 10]


@pytest.mark.parametrize("seed", range(40))
def test_a_parameter_is_copied_while_its_module_runs_whatever_is_looked_at(seed: int) -> None:
    """Random calls, some modules inside one other always, some not; what is looked at has room, or is the module."""
    draw = random.Random(seed)
    owned = [draw.sample(range(9), draw.choice([0, 1, 2])) for _ in range(7)]
    sizes, base, room = [draw.randint(1, 9) for _ in range(9)], draw.randint(0, 5), draw.randint(0, 40)
    inner = {k: draw.sample(range(k + 1, 7), draw.randint(0, 6 - k)) for k in range(7)}
    events: list[int] = []

    def call(k: int) -> None:
        events.append(k)
        for other in inner[k]:
            if draw.random() < 0.8:
                call(other)
        events.append(-1 - k)

    for k in draw.choices(range(3), k=3):
        call(k)
    found = outermost(events, owned, sizes, base, room)
    assert all(found.values())
    running: list[int] = []
    for event in events:
        if event < 0:
            running.remove(-1 - event)
            continue
        running.append(event)
        held = {i for k in running for i in found.get(k, [])}
        assert held >= {i for k in running for i in owned[k]}
        for k in running:
            if k in found and set(found[k]) - set(owned[k]):
                assert base + sum(sizes[i] for i in held) <= room


class Layered(nn.Module):
    """A large embedding, and layers of three small modules each."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(64, 8)
        blocks = (nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8, bias=False)) for _ in range(4))
        self.layers = nn.ModuleList(blocks)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


def test_hooks_tell_of_layers_alone_where_their_copies_have_room() -> None:
    """From the second step on: as full copies, to the bit, in no more memory than the first step took."""
    torch.manual_seed(0)
    model = Layered()
    twin, ids = copy.deepcopy(model), torch.arange(12)
    optimizer, reference = (MeZO(m.named_parameters(), 1e-3, **w) for m, w in ((model, {"model": model}), (twin, {})))
    hooked: list[set[str]] = []

    def loss() -> Tensor:
        hooked.append({name for name, m in model.named_modules() if m._forward_pre_hooks})
        return model(ids)

    held = []
    for _ in range(5):
        assert torch.equal(optimizer.step(loss), reference.step(lambda: twin(ids)))
        held.append(optimizer.scratch_bytes())
    assert held == [model.words.weight.nbytes] * 5
    assert len(hooked[0]) == len(list(model.modules()))
    assert set(map(frozenset, hooked[4:])) == {frozenset({"words", *(f"layers.{i}" for i in range(4))})}
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


class Leaf(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.randn(size))

    def forward(self, x: Tensor, *inner: nn.Module) -> Tensor:
        for module in inner:
            x = module(x)
        return x * self.own.mean()


def test_an_unexpected_order_takes_no_more_memory_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last leaf, of 128 bytes, once runs inside the second, which lies in the middle of a block of 3 x 64 bytes."""
    monkeypatch.setattr(blocks, "least_bytes", lambda device: 192)
    torch.manual_seed(0)
    first, second, third, last = model = nn.ModuleList(Leaf(size) for size in (16, 16, 16, 32))
    targets = [Target(p, i, name) for i, (name, p) in enumerate(model.named_parameters())]
    probe, x = Probe(targets, model), torch.ones(())
    for _ in range(3):
        probe.loss(lambda: last(second(first(x), third)), Direction(0, 1), 1e-2)
    assert probe.scratch.num_bytes == 192
    for _ in range(3):
        probe.loss(lambda: third(second(first(x), last)), Direction(0, 1), 1e-2)
    assert probe.scratch.num_bytes == 192


def test_a_module_that_comes_to_run_inside_another_takes_no_more_memory_than_both() -> None:
    """The outer one owns nothing, and the copies of its four leaves, of 128 bytes each, have room; with another of 384
    bytes they have not. As full copies, to the bit, in what the largest set of nested modules takes."""
    torch.manual_seed(0)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(Leaf(32) for _ in range(4))

        def forward(self, x: Tensor, *more: nn.Module) -> Tensor:
            for module in (*self.parts, *more):
                x = module(x)
            return x

    model = nn.ModuleDict({"largest": Leaf(128), "large": Leaf(96), "outer": Outer()})
    twin, x = copy.deepcopy(model), torch.ones(())
    optimizer, reference = (MeZO(m.named_parameters(), 1e-3, **w) for m, w in ((model, {"model": model}), (twin, {})))

    def loss(net: Any, step: int) -> Tensor:
        if step < 3:
            return net["largest"](net["large"](net["outer"](x)))
        return net["largest"](net["outer"](x, net["large"]))

    hooked = []
    for step in range(1, 10):
        pair = [o.step(lambda n=n, k=step: loss(n, k)) for o, n in ((optimizer, model), (reference, twin))]
        assert torch.equal(*pair)
        assert optimizer.scratch_bytes() == 512
        hooked.append({id(module) for module in optimizer.probe._hooked.modules})
    assert hooked[1] == hooked[2] == {id(module) for module in model.values()}
    assert id(model["outer"]) not in hooked[-1]  # its leaves tell of themselves
    assert all(map(torch.equal, model.parameters(), twin.parameters()))


@pytest.mark.parametrize("room", [0, 1 << 12])
def test_what_is_kept_between_steps_is_made_anew_when_parameters_move(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights in other memory, in another layout, of another dtype: as a fresh optimizer's steps."""
    monkeypatch.setattr(blocks, "least_bytes", lambda device: room)
    x = torch.linspace(-1.0, 1.0, 12).view(3, 4)

    def build() -> Any:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def transposed(p: nn.Parameter) -> Tensor:
        return p.data.t().clone().t() if p.dim() == 2 else p.data.clone()

    for change in (lambda p: p.data.clone(), transposed, lambda p: p.data.double()):
        model, twin = build(), build()
        optimizer = MeZO(model.named_parameters(), 1e-2, model=model)
        for step in range(6):
            fresh = MeZO(twin.named_parameters(), 1e-2)
            fresh.param_groups[0]["step"] = step
            if step == 3:
                for net in (model, twin):
                    for p in net.parameters():
                        p.data = change(p)
            losses = [
                o.step(lambda net=net: net(x.to(net[0].weight.dtype)).square().mean())
                for o, net in ((optimizer, model), (fresh, twin))
            ]
            assert torch.equal(*losses)
            assert all(map(torch.equal, model.parameters(), twin.parameters()))
