"""Checks of ``proofs/limits/max_dimension.md``; the letters are those of the page."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction as F
from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import hadamard

from theory.ledger.search import survey
from theory.losses.draws import seeded
from theory.losses.exact_layers import ExactLayer, fixed_layer
from theory.losses.smooth import RidgeLoss, Smooth
from theory.proofs.problems import Independent, one_basis_layer, quadratic_layer
from theory.updates.clipped_newton import count_steps


def moves(layer: ExactLayer) -> list[tuple[F, F]]:
    """|p_j| before and after a step with ρ = R/2, the largest clip of the Proposition, signed by the start's side."""
    rho = layer.radius / 2
    return [(abs(x), (x - c / 2) * (1 if x > 0 else -1)) for x, c in zip(layer.p, layer.clipped(rho), strict=True)]


def contracts(layer: ExactLayer, quarters: F = F(3, 4), half: F = F(1, 2)) -> bool:
    """(b): x⁺ ≤ max(x − ρ/2, ¾ x)."""
    return all(after <= max(x - half * layer.radius / 2, quarters * x) for x, after in moves(layer))


STATEMENTS: dict[str, Callable[[ExactLayer], bool]] = {
    "no overshoot": lambda a: all(after >= 0 for _, after in moves(a)),
    "contraction": contracts,
}
TWINS: dict[str, Callable[[ExactLayer], bool]] = {
    "overshoot, something remains": lambda a: all(after > x / 50 for x, after in moves(a)),
    "3/4 → 7/10": lambda a: contracts(a, quarters=F(7, 10)),
    "ρ/2 → 0.55 ρ": lambda a: contracts(a, half=F(55, 100)),
}


def test_a_and_b_one_coordinate():
    """Exact search over layers with one eigenbasis."""
    found = survey(seeded(fixed_layer), STATEMENTS, TWINS, num_examples=300)
    assert not found.against
    assert set(found.fallen) == set(TWINS)


@pytest.mark.parametrize("seed", range(20), ids="seed {}".format)
def test_c_the_count_lies_in_the_bracket(seed):
    """Random bases, spectra and starts in float64, two clips; the bracket is open by more than rounding could close."""
    rng = np.random.default_rng([seed, 5])
    layer = (quadratic_layer if seed % 2 else one_basis_layer)(rng)
    loss = layer.problem
    assert isinstance(loss, RidgeLoss)
    largest = float(np.abs(loss.directions @ layer.start).max())
    trace = float(np.trace(loss(0 * layer.start).blocks[0]))
    target = min(loss(layer.start).gap, layer.mu * layer.radius**2 / 4) * 10.0 ** -rng.uniform(1, 3)
    for rho in (layer.radius / 2, layer.radius / (2 * math.sqrt(layer.dimension))):
        count = count_steps(loss, layer.start, target, 10**5, [layer.dimension], [rho])
        lower = 2 / rho * (largest - 2 * math.sqrt(target / layer.mu))
        near = max(0.0, math.log(4 * rho**2 * trace / target)) / math.log(16 / 9)
        upper = 2 / rho * max(0.0, largest - 2 * rho) + near + 2
        assert lower <= count.steps <= upper


N, W, RADIUS, A, TARGET = 4, 16, 1.0, 8.0, 1e-2


def count(rows: np.ndarray, starts: list[np.ndarray], clip: float) -> int:
    """Steps of four quadratic layers with the given orthonormal rows until the gap is at most the target."""
    sigma = 1 + np.arange(W) / W
    layer = RidgeLoss(rows, [Smooth("quadratic", s) for s in sigma], 0.0, (W,))
    problem = Independent([layer] * N, [W] * N)
    return count_steps(problem, np.concatenate(starts), TARGET, 10**4, [W] * N, [clip] * N).steps


LAYERWISE, ONE_LAYER = RADIUS / (2 * math.sqrt(W)), RADIUS / (2 * math.sqrt(N * W))
PLAIN, TURNED = np.eye(W), hadamard(W) / math.sqrt(W)
ALL, FIRST, NONE = np.ones(W), np.eye(W)[0], np.zeros(W)

#: Cell: rows of V, starts, the predicted leading term 4 √(·) ‖p‖_∞/R layer-wise and as one layer, and the counts.
CELLS = {
    "per coordinate, even": (PLAIN, [A * ALL] * N, 4 * math.sqrt(W) * A, (130, 257)),
    "per coordinate, one direction": (TURNED, [A * ALL] * N, 4 * W * A, (511, 1022)),
    "per layer, even": (PLAIN, [A / math.sqrt(W) * ALL] * N, 4 * A, (34, 65)),
    "per layer, one direction": (PLAIN, [A * FIRST] * N, 4 * math.sqrt(W) * A, (127, 254)),
    "in total, even": (PLAIN, [A / math.sqrt(N * W) * ALL] * N, 4 * A / math.sqrt(N), (18, 33)),
    "in total, one direction": (PLAIN, [A * FIRST, NONE, NONE, NONE], 4 * math.sqrt(W) * A, (126, 252)),
}


@pytest.mark.parametrize("cell", CELLS)
def test_the_table_s_cells(cell):
    """The counts on the page, each within the Proposition's bracket around its leading term (μ = 1, tr H ≤ 2 w)."""
    rows, starts, leading, counts = CELLS[cell]
    for clip, factor, counted in zip((LAYERWISE, ONE_LAYER), (1.0, math.sqrt(N)), counts, strict=True):
        steps, term = count(rows, starts, clip), factor * leading
        assert steps == counted
        above = math.log(4 * clip**2 * N * 2 * W / TARGET) / math.log(16 / 9) + 2
        assert term - 2 / clip * 2 * math.sqrt(TARGET) <= steps <= term + above


def test_the_page_prints_these_counts():
    """Each row of the table of counts: leading terms (the second is √n = 2 times the first) and counts."""
    text = Path(__file__).with_name("max_dimension.md").read_text(encoding="utf-8")
    for cell, (_, _, leading, (layerwise, as_one)) in CELLS.items():
        fixed, start = cell.removesuffix(" direction").split(", ")
        row = f"| {fixed} | {start} | {leading:.0f} | **{layerwise}** | {2 * leading:.0f} | **{as_one}** |"
        assert row in text, row


def test_one_clip_for_all_layers_is_the_layer_wise_update():
    """With equal R_i/√d_i there is nothing layer-wise left: R/(2√w) everywhere."""
    layers = [RidgeLoss(PLAIN, [Smooth("quadratic", s) for s in 1 + np.arange(W) / W], 0.0, (W,))] * N
    problem = Independent(layers, [W] * N)
    start = np.concatenate([A * ALL] * N)
    layerwise = count_steps(problem, start, TARGET, 10**4, [W] * N, [LAYERWISE] * N)
    at_once = count_steps(lambda p: _merged(problem(p)), start, TARGET, 10**4, [N * W], [LAYERWISE])
    assert layerwise.steps == at_once.steps
    np.testing.assert_allclose(layerwise.p, at_once.p, rtol=0, atol=1e-12)  # some hundred steps of a few roundings of 8


def _merged(at):
    """The same evaluation as one layer: the blocks are diagonal here."""
    return type(at)(at.gap, at.gradient, [np.concatenate([np.diag(block) for block in at.blocks])])
