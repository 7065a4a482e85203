r"""Directions: z is a function of a key alone, so it is never stored and never depends on a device's generator.

The key is (seed, step, draw, parameter id, element index). A counter-based generator, Philox 4x32 with 7 rounds (Salmon
et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; the fewest rounds that pass their test batteries, and ours),
maps it to 32-bit integers and Box-Muller maps these to normals. The same key gives the same integers, bit for bit, on
every device, dtype, chunking and shard; normals agree to ``|dz| <= 8 · 2^-24 · max(1, |z|)`` with accurate functions.
torch's global generator is never touched.

Layout of the 128-bit counter, most significant word last: element // 4, low 32 bits of the parameter id, step, and
draw · 2^16 + high 16 bits of the parameter id; the 64-bit key is the seed. Of a block's four words (x0, x1, x2, x3),
the pairs (x0, x1) and (x2, x3) give elements 4b, 4b + 1 and 4b + 2, 4b + 3.

`keys` has the constants. The numbers come from `numpy_generator` on the CPU, from `helene.kernels` where Triton is,
from `torch_generator` on other devices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from helene.kernels.backend import backend
from helene.noise import numpy_generator
from helene.noise.keys import (
    CURVATURE_DRAW,
    LABEL_DRAW,
    MAX_ELEMENTS,
    MULTIPLIERS,
    NOISE_VERSION,
    ROUNDING_DRAW,
    ROUNDS,
    STATE_DRAW,
    WEYL,
    check_key,
    parameter_id,
)
from helene.noise.numpy_generator import integers

__all__ = [
    "CURVATURE_DRAW",
    "LABEL_DRAW",
    "MAX_ELEMENTS",
    "MULTIPLIERS",
    "NOISE_VERSION",
    "ROUNDING_DRAW",
    "ROUNDS",
    "STATE_DRAW",
    "WEYL",
    "check_key",
    "integers",
    "normal",
    "parameter_id",
    "signs",
    "words",
]


def normal(
    seed: int, step: int, draw: int, parameter: int, start: int, count: int, device: torch.device | str = "cpu"
) -> Tensor:
    r"""Elements [start, start + count) of the direction z of one parameter.

    Args:
        seed: 64-bit run seed.
        step: Step of the run, below 2^32.
        draw: Which of the step's directions, below 2^16.
        parameter: 48-bit id, see `parameter_id`.
        start: First element, in the parameter's row-major order.
        count: Number of elements.
        device: Where the result is wanted.

    Returns:
        Tensor of shape (count,), float32, standard normal.

    Raises:
        ValueError: If a part of the key does not fit its field.
    """
    check_key(seed, step, draw, parameter, start + count)
    if torch.device(device).type == "cpu":
        return torch.from_numpy(numpy_generator.normal(seed, step, draw, parameter, start, count))
    return _elsewhere(seed, step, draw, parameter, start, count, torch.device(device), raw=False)


def signs(
    seed: int, step: int, draw: int, parameter: int, start: int, count: int, device: torch.device | str = "cpu"
) -> Tensor:
    r"""Elements of a Rademacher direction: +1 where the top bit of the generator's word is 0, else -1.

    Args, device and errors as in `normal`.

    Returns:
        Tensor of shape (count,), float32.
    """
    return 1.0 - 2.0 * (words(seed, step, draw, parameter, start, count, device) < 0).float()


def words(
    seed: int, step: int, draw: int, parameter: int, start: int, count: int, device: torch.device | str = "cpu"
) -> Tensor:
    r"""`integers` as a tensor of shape (count,), int32: the same bits, for stochastic rounding."""
    check_key(seed, step, draw, parameter, start + count)
    if torch.device(device).type == "cpu":
        return torch.from_numpy(integers(seed, step, draw, parameter, start, count).view("int32"))
    return _elsewhere(seed, step, draw, parameter, start, count, torch.device(device), raw=True)


def _elsewhere(
    seed: int, step: int, draw: int, parameter: int, start: int, count: int, device: torch.device, raw: bool
) -> Tensor:
    """On a device other than the CPU: normals, or words."""
    if backend(torch.empty(0, device=device)).is_triton:
        from helene.kernels import launch

        return launch.fill(seed, step, draw, parameter, start, count, device, raw=raw)
    from helene.noise import torch_generator

    make = torch_generator.words if raw else torch_generator.normal
    return make(seed, step, draw, parameter, start, count, device, ROUNDS)
