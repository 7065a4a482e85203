"""Grouped MeZO: a direction of low rank for each group of the batch's examples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from helene import functional
from helene.evaluation.grouped.factors import Factors
from helene.evaluation.grouped.places import UnequalGroups
from helene.evaluation.grouped.probe import GroupProbe
from helene.evaluation.losses import Closure, finite
from helene.inputs import numeric
from helene.rules import TorchSGDRule
from helene.steps.base import Delegated, LearningRate, Options
from helene.steps.gradient_noise import GradientNoise, GroupSlopes, choose_groups
from helene.steps.measurement import Chunk, Measured, Measurement
from helene.steps.plan import Seeded, StepPlan
from helene.steps.resolution import ResolutionWatch
from helene.steps.zeroth import ZerothOrder

MAX_GROUPS, MAX_RANK = 1 << 16, 1 << 10
CHOOSE_EVERY = 50  # steps between looks at the noise where groups="auto"


class GroupedOptions(Options, total=False):
    """Keyword arguments of `GroupedMeZO`."""

    eps: float
    rank: int
    distribution: str
    model: nn.Module | None


@dataclass(frozen=True, kw_only=True)
class GroupedProbing(Seeded):
    """The probing of `GroupedMeZO`."""

    two_sided: ClassVar[bool] = True
    direction_per_layer: ClassVar[bool] = False
    is_low_rank: ClassVar[bool] = True

    eps: float = 1e-3
    groups: int = 1
    rank: int = 1
    distribution: str = "gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        numeric.finite_positive(self.eps, "eps", "1e-3 is usual in float32")
        numeric.whole(self.groups, "groups", 1, MAX_GROUPS, "a divisor of the batch's number of examples, or 'auto'")
        numeric.whole(self.rank, "rank", 1, MAX_RANK, "1 costs least")
        numeric.one_of(self.distribution, "distribution of the factors", ("gaussian", "rademacher"))

    @property
    def num_directions(self) -> int:
        """One a group."""
        return self.groups


class GroupPairs(Measurement):
    r"""A pair of losses for each group, along its own direction: c_g = (L_g⁺ − L_g⁻) / (2 eps).

    One forward of the whole batch gives all L_g⁺, another all L_g⁻; g = (1/G) Σ_g c_g z_g.
    """

    sums_directions = True

    def forwards(self, probing: GroupedProbing, num_blocks: int) -> int:
        """See `Measurement`."""
        return 2

    def measure(self, optimizer: Any, closure: Closure, plan: StepPlan) -> Measured:
        """See `Measurement`; the sample is the `GroupSlopes`."""
        probing: Any = plan.probing
        share, factors = optimizer.share, optimizer.factors(plan)
        mine = factors if share is None else share.part(factors)
        losses = optimizer.probe.pair(closure, mine, probing.eps)
        found = by_group(losses, mine.groups, probing.eps)
        if share is not None:
            found = share.whole(found)
        plus, minus, squares, examples = found
        finite(found[:2])
        optimizer.resolution.note(plus.tolist(), minus.tolist(), losses.dtype)
        slopes = functional.projected_gradient(plus, minus, probing.eps)
        loss = losses.mean() if share is None else found[:2].mean().to(losses)
        return Measured((slopes / probing.groups).tolist(), loss, GroupSlopes(slopes, squares, int(examples[0])))


def by_group(losses: Tensor, groups: int, eps: float) -> Tensor:
    """What a step is made of: L_g⁺, L_g⁻, the mean c_i² of g's examples, their number; float64, shape (4, groups).

    Args:
        losses: Of each example at both sides, shape (2, examples).
        groups: Equal parts of them, in their order.
        eps: Radius of the probes.
    """
    plus, minus = losses.to("cpu", torch.float64).view(2, groups, -1)
    squares = functional.projected_gradient(plus, minus, eps).square().mean(dim=1)
    examples = torch.full_like(squares, plus.shape[1])
    return torch.stack([plus.mean(dim=1), minus.mean(dim=1), squares, examples])


class GroupedMeZO(ZerothOrder):
    r"""MeZO with a direction of low rank for each of G groups of the batch.

        c_g = (L_g(theta + eps z_g) − L_g(theta − eps z_g)) / (2 eps),  L_g the mean loss of group g's examples
        m ← momentum · m + (1/G) Σ_g c_g z_g + weight_decay · theta,  theta ← theta − lr m

    With z_g = u_g v_gᵀ for a matrix (a sum of ``rank`` such products over √rank; dense for a vector), a product with
    the perturbed weight is the plain one and a term of rank one. So a forward of the batch gives the losses of all
    groups, and no weight is copied. In the two forwards in which MeZO sees one slope a step sees G: E|g|² is about
    d (|ḡ|²/G + tr Σ/B) in place of d (|ḡ|² + tr Σ/B), Σ the covariance of an example's gradient; see
    theory/proofs/algorithm/groups.md.

    Named after MeZO, whose step it is with one group, but for the law of z. Its neighbours in the literature perturb by
    low rank too, with another division of labour: one direction for the whole batch, or members of a population.

    Cost of a step: 2 forwards of the batch, one draw of z (G rank (m + n) numbers for a matrix of m x n), one pass over
    the parameters. Steps 1, 2, 4, 8, ... look whether examples are apart, in ⌈log₂ G⌉ forwards more. No state but m.
    Memory for the numbers drawn, which is kept. Tied weights are one parameter with one direction. Examples are rows:
    groups are equal parts of the first axis.

        optimizer = GroupedMeZO(model.named_parameters(), lr=1e-6, groups=16)
        loss = optimizer.step(lambda: F.cross_entropy(model(x), y, reduction="none"))

    Attributes:
        noise: tr Σ / |ḡ|² of the last steps, where groups have two examples or more (`helene.steps.gradient_noise`).

    Args:
        params: Parameters, named parameters or groups of either; a group is a layer.
        lr: Learning rate, a number or a function of the step (the first is 1).
        groups: G, a divisor of the batch's number of examples. "auto" starts with the most that leave two examples
            each and follows ``noise`` every 50 steps: as few as lose at most 5 %. Where so many cannot share a batch,
            its own number is chosen, and the batch is evaluated anew. With 1 the closure may return one number as
            for MeZO, and examples need not be apart.
        momentum: In [0, 1); with 0 nothing is kept.
        options: ``eps``; ``rank`` of z; ``distribution`` of the factors' elements, "gaussian" or "rademacher" (±1);
            ``model``, see `ZerothOrder`, here for checks alone; and those of `helene.steps.base.Base`.

    Raises:
        ValueError: If an argument is out of its range, or a parameter has more than two axes. `step`, before anything
            moves: if a parameter is read otherwise than by linear layers, embeddings, norms and elementwise products
            with vectors, or the closure does not return the loss of each example or group.
    """

    RULE = TorchSGDRule
    PROBING = GroupedProbing
    MEASUREMENT = GroupPairs()
    share: Any = None  # of several ranks, see `helene.engine.groups`
    _factors: Factors | None = None
    _made_for: tuple[Any, ...] = ()
    _drawn: tuple[Any, ...] | None = None

    def __init__(
        self,
        params: Iterable[Any],
        lr: LearningRate = 1e-6,
        *,
        groups: int | str = 1,
        momentum: float = 0.0,
        **options: Unpack[GroupedOptions],
    ) -> None:
        self.noise, self.chooses = GradientNoise(), groups == "auto"
        hyper = {"lr": lr, "groups": 2 if self.chooses else groups, "momentum": momentum}
        super().__init__(params, hyper, options)

    def step(  # type: ignore[override]
        self, closure: Closure | Delegated | None = None, curvature_closure: Closure | None = None
    ) -> Tensor:
        """See `Base`; a batch that chosen groups cannot share has its own, for this step."""
        usual = None
        try:
            for _ in range(2):  # its rows may be counted first, then its examples
                try:
                    return super().step(closure, curvature_closure)
                except UnequalGroups as err:
                    if not self.chooses:
                        raise
                    usual = usual or self.param_groups[0]["groups"]
                    self.noise.batch_size = err.places
                    self._set_groups(choose_groups(err.places, self.noise.estimate()))
            return super().step(closure, curvature_closure)
        finally:
            if usual is not None:
                self._set_groups(usual)

    def plan(self, scheduled: bool = True) -> StepPlan:
        """See `Base`; where groups are chosen, by the noise of the steps before."""
        batch = self.noise.batch_size
        if scheduled and self.chooses and batch and (self.steps_made % CHOOSE_EVERY == 0 or self.steps_made == 1):
            self._set_groups(choose_groups(batch, self.noise.estimate()))
        return super().plan(scheduled)

    def _set_groups(self, number: int) -> None:
        for group in self.param_groups:
            group["groups"] = number

    def finish(self, plan: StepPlan, measured: Measured) -> None:
        """See `Base`; the noise is taken in."""
        super().finish(plan, measured)
        self.noise.add(measured.sample[0])

    def factors(self, plan: StepPlan) -> Factors:
        """The directions of a step, drawn once."""
        probing: Any = plan.probing
        step = plan.seed, plan.step, probing.groups, probing.rank, probing.distribution
        if self._factors is not None and self._drawn == step:
            return self._factors
        places = [(target.tensor.shape, target.tensor.device) for target in self.targets]
        made_for = probing.groups, probing.rank, probing.distribution, places
        if self._factors is None or self._made_for != made_for:
            signs = probing.distribution == "rademacher"
            self._factors = Factors(self.targets, groups=probing.groups, rank=probing.rank, signs=signs)
            self._made_for, self._drawn = made_for, None
        self._drawn = None
        self._factors.draw(plan.seed, plan.step)
        self._drawn = step
        return self._factors

    def combination(self, plan: StepPlan, coefficients: Sequence[float], first_draw: int = 0) -> Chunk:
        """Σ_g a_g z_g by chunks."""
        return self.factors(plan).combination(coefficients)

    def compare_gradient(self, closure: Closure) -> list[dict[str, Any]]:
        """See `ZerothOrder`; the gradient is that of the mean of the closure's losses."""

        def mean_where_differentiated() -> Any:
            value = closure()
            return value.mean() if torch.is_grad_enabled() and isinstance(value, torch.Tensor) else value

        return super().compare_gradient(mean_where_differentiated)

    def diagnostics(self) -> dict[str, Any]:
        """See `ZerothOrder`; with ``noise``, see `GradientNoise.summary`."""
        groups = self._describe(self.param_groups[0])[2].groups  # type: ignore[attr-defined]
        return {**super().diagnostics(), "noise": self.noise.summary(groups)}

    def state_dict(self) -> dict[str, Any]:
        """See `Base`; with ``noise``, from which groups="auto" chooses."""
        return {**super().state_dict(), "noise": self.noise.as_json()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `Base`."""
        super().load_state_dict(state_dict)
        self.noise = GradientNoise.from_json(state_dict.get("noise", {}))

    def _arrange(self, probing: Any) -> None:
        if self._arranged is None:
            self._arranged = True
            self._forget_factors()
            self.resolution = ResolutionWatch()
            probe: Any = GroupProbe(self.targets, self._model)
            self.probe, self.probes, self.block_of = probe, [probe], [0] * len(self.targets)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "chooses": self.chooses, "noise": self.noise}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._forget_factors()
        super().__setstate__(state)

    def _look_again(self) -> None:
        self.probe.look_again()

    def _forget_factors(self) -> None:
        self._factors, self._made_for, self._drawn = None, (), None
