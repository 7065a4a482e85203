"""The methods, an entry each: every list of them is made from this table, and nothing here imports anything of ours.

Read by the package's public names, the contract tests (of optimizers and of paths), `synthetic`, `llm_bench` and the
benchmarks. See docs/adding_an_optimizer.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Scaling:
    """What `helene scaling` needs of a method.

    Attributes:
        space: Its search space, see `synthetic.design.trials`: ``log2_q`` the step size in natural units, the rest
            arguments of its rule.
        presets: Those that it joins, on the cells of their first block; others name it themselves.
        name: As in presets and records; the entry's own with underscores where it is empty.
        title: As on pages; the entry's label where it is empty.
        drawn: Whether figures show it beside HELENE and the controls.
    """

    space: Mapping[str, Any]
    presets: tuple[str, ...] = ()
    name: str = ""
    title: str = ""
    drawn: bool = True


@dataclass(frozen=True)
class Contract:
    """What the contract tests need of a method.

    Attributes:
        arguments: Those with which it moves on targets of unit scale.
        momentum: The argument that switches momentum off at 0.
        coupled: Whether weight decay is part of the gradient and shows.
        gain: Bound on |d step / d c| in units of lr |z|, with the arguments of ``flat``.
        flat: Arguments that make that bound hold.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    momentum: str | None = None
    coupled: bool = False
    gain: float = 1.0
    flat: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """One optimizer.

    Attributes:
        cls: Its class.
        module: Where that is, in `helene.optimizers`.
        name: As in the configs and commands of `llm_bench`.
        label: As on pages; the paper's name where it has one.
        state: Tensors of the parameters' size that it keeps.
        unit_step: Whether a weight moves by about lr whatever the loss; else by lr times a gradient.
        lr_ratio: Its natural step size over MeZO's: 1 − beta1 for a heavy ball, whose momentum sums 1 / (1 − beta1)
            gradients.
        needs: Arguments without a default, which depend on the run: ``batch_size``, ``anneal_horizon``.
        fixed: Arguments that a run without logits must set.
        contract: For the contract tests.
        scaling: None where `helene scaling` does not simulate it.
        compared: Tables and figures of `llm_bench` that have it: "table 3", "optimizers", "newton".
    """

    cls: str
    module: str
    name: str
    label: str
    state: int = 0
    unit_step: bool = False
    lr_ratio: float = 1.0
    needs: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    contract: Contract = Contract()
    scaling: Scaling | None = None
    compared: tuple[str, ...] = ()

    @property
    def grid_name(self) -> str:
        """Its name in `synthetic`."""
        return (self.scaling and self.scaling.name) or self.name.replace("-", "_")

    def arguments(self, **run: Any) -> dict[str, Any]:
        """What its constructor must be told: ``fixed``, and of ``run`` what it ``needs``."""
        return {**self.fixed, **{name: run[name] for name in self.needs}}


def step_sizes(start: int, per_octave: int = 2, count: int = 8) -> dict[str, int]:
    """A grid of step sizes, in powers of two: with what else is tuned, 24 trials for every method."""
    return {"from": start, "to": start + count - 1, "per_octave": per_octave}


CURVED = {"batch_size": 4, "interval": 3}
DAMPED = {"denominator_eps": 1.0}
# Floors are ratios to h_0 = B |g_0|^2. beta1, beta2, interval and gamma are the usual values of Algorithm 1; B is 1, as
# losses are deterministic.
HELENE_SPACE = {
    "log2_q": step_sizes(-3),
    "floor_ratio": [0.03, 0.3, 3.0],
    "beta1": [0.9],
    "beta2": [0.99],
    "interval": [10],
    "gamma": [1.0],
    "batch_size": [1],
    "denominator_eps": [1e-12],
}
_ADAM = {"beta1": [0.9], "beta2": [0.999], "denominator_eps": [1e-12]}
_SOPHIA = {"beta1": [0.9], "beta2": [0.99], "interval": [10], "denominator_eps": [1e-12]}

ENTRIES = (
    Entry(
        "MeZO",
        "mezo",
        "mezo",
        "MeZO",
        scaling=Scaling({"log2_q": step_sizes(-12, 6, 24)}),
        compared=("table 3", "newton", "optimizers"),
    ),
    Entry(
        "Helene",
        "helene",
        "helene",
        "HELENE",
        state=2,
        lr_ratio=0.1,
        needs=("batch_size", "anneal_horizon"),
        contract=Contract({"anneal_horizon": 50, "beta1": 0.5, **CURVED}, momentum="beta1"),
        scaling=Scaling(HELENE_SPACE),
        compared=("table 3", "newton", "optimizers"),
    ),
    Entry(
        "ZOMomentum",
        "momentum",
        "zo-sgd-mmt",
        "ZO-SGD-MMT",
        state=1,
        lr_ratio=0.1,
        contract=Contract({"momentum": 0.5}, momentum="momentum"),
        scaling=Scaling({"log2_q": step_sizes(-12, 6, 24), "beta1": [0.9]}, name="heavy_ball", title="heavy-ball MeZO"),
        compared=("table 3",),
    ),
    Entry("ZOConservative", "conservative", "zo-sgd-cons", "ZO-SGD-Cons", compared=("table 3",)),
    Entry(
        "ZOSign",
        "sign",
        "zo-sgd-sign",
        "ZO-SGD-Sign",
        unit_step=True,
        lr_ratio=3.0,
        contract=Contract(gain=0.0),
        compared=("table 3",),
    ),
    Entry(
        "ZOScalarSign",
        "sign",
        "zo-scalar-sign",
        "ZO-SGD, sign of the scalar",
        unit_step=True,
        contract=Contract(gain=0.0),
    ),
    Entry(
        "ZOAdam",
        "adam",
        "zo-adam",
        "ZO-Adam",
        state=2,
        unit_step=True,
        lr_ratio=3.0,
        contract=Contract({"beta2": 0.9}, momentum="beta1", coupled=True, flat=DAMPED),
        scaling=Scaling({"log2_q": step_sizes(-19, 2, 24), **_ADAM}, drawn=False),
        compared=("table 3", "optimizers"),
    ),
    Entry(
        "ZOAdamW",
        "adam",
        "zo-adamw",
        "ZO-AdamW",
        state=2,
        unit_step=True,
        lr_ratio=3.0,
        contract=Contract({"beta2": 0.9}, momentum="beta1", flat=DAMPED),
        compared=("optimizers",),
    ),
    Entry(
        "ZOLion",
        "lion",
        "zo-lion",
        "ZO-Lion",
        state=1,
        unit_step=True,
        contract=Contract({"beta2": 0.5}, momentum="beta1", gain=0.0),
        compared=("optimizers",),
    ),
    Entry(
        "ZOSophia",
        "sophia",
        "zo-sophia",
        "ZO-Sophia",
        state=2,
        unit_step=True,
        needs=("batch_size",),
        contract=Contract({"beta1": 0.5, **CURVED}, momentum="beta1", flat=DAMPED),
        scaling=Scaling({"log2_q": step_sizes(-9), "clip_ratio": [0.3, 1.0, 3.0], **_SOPHIA}, drawn=False),
        compared=("newton",),
    ),
    Entry(
        "ZONewton",
        "newton",
        "zo-newton",
        "ZO-Newton",
        state=1,
        needs=("batch_size",),
        contract=Contract({**CURVED, **DAMPED}),
        compared=("newton",),
    ),
    Entry("ForwardGrad", "forward", "forward-grad", "Forward-Grad", compared=("table 3",)),
    Entry("HiZOO", "hizoo", "hizoo", "HiZOO", state=1, contract=Contract({"smooth": 1e-3})),
    Entry(
        "FZOO",
        "fzoo",
        "fzoo",
        "FZOO",
        unit_step=True,
        lr_ratio=50.0,
        contract=Contract({"num_directions": 3}, gain=100.0),
    ),
    Entry(
        "GroupedMeZO",
        "grouped",
        "mezo-grouped",
        "Grouped MeZO",
        contract=Contract(momentum="momentum"),
    ),
    Entry(
        "Adam",
        "adam",
        "ft-adam",
        "FT (Adam)",
        state=2,
        unit_step=True,
        lr_ratio=10.0,
        contract=Contract({"beta2": 0.9}, momentum="beta1", coupled=True, gain=0.0),
    ),
    Entry(
        "SGD",
        "sgd",
        "fo-sgd",
        "FO-SGD",
        lr_ratio=1000.0,
        contract=Contract({"momentum": 0.5}, momentum="momentum", coupled=True, gain=0.0),
        compared=("table 3",),
    ),
    Entry(
        "AdamW",
        "adam",
        "fo-adamw",
        "AdamW",
        state=2,
        unit_step=True,
        lr_ratio=10.0,
        contract=Contract({"beta2": 0.9}, momentum="beta1", gain=0.0),
    ),
    Entry(
        "Lion",
        "lion",
        "fo-lion",
        "Lion",
        state=1,
        unit_step=True,
        contract=Contract({"beta2": 0.5}, momentum="beta1", gain=0.0),
    ),
    Entry(
        "SophiaG",
        "sophia",
        "fo-sophia",
        "Sophia-G",
        state=2,
        unit_step=True,
        needs=("batch_size",),
        fixed={"curvature": "backprop"},
        contract=Contract({"beta1": 0.5, **CURVED}, momentum="beta1", gain=0.0),
    ),
)


def compared(where: str) -> tuple[Entry, ...]:
    """The methods of a table or figure of `llm_bench`."""
    return tuple(entry for entry in ENTRIES if where in entry.compared)
