r"""Directions for many seeds, steps and layers at once, equal bit for bit to those of `helene.noise`.

For batched simulation, where a call a step would cost more than the numbers. Of the definition of z the integers and
what IEEE fixes to the last bit are compiled, a pass before logarithm, cosine and sine and one after. Those three are
numpy's, as in `helene.noise`: another library's differ in the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import njit
from torch import Tensor

from helene.noise import MULTIPLIERS, ROUNDS, WEYL, check_key, parameter_id

if TYPE_CHECKING:
    from jaxtyping import Float

_CHUNK = 1 << 13  # counters at a time, so that their words stay in a core's L2 cache
_M0, _M1, _W0, _W1 = (np.uint64(word) for word in (*MULTIPLIERS, *WEYL))
_WORD, _32, _8 = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint32(8)
_UNIT, _HALF_UNIT, _ANGLE = np.float32(2.0**-32), np.float32(2.0**-33), np.float32(2.0 * math.pi / 2**24)
_MINUS_TWO = np.float32(-2.0)


class BatchedDirections:
    r"""Draws the z of `helene.optimizers` for parameters without names; not in two threads at once.

    Args:
        sizes: Number of elements of the parameter at each position.

    Raises:
        ValueError: If there are none, or one is below 1.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        if min(self.sizes, default=0) < 1:
            raise ValueError(f"sizes must be one or more numbers of at least 1, got {self.sizes}")
        blocks = [-(-size // 4) for size in sizes]
        self._a_step = sum(blocks)
        self._some = max(1, _CHUNK // self._a_step)  # steps whose counters lie side by side
        ids = np.repeat(np.array([parameter_id(i) for i in range(len(sizes))], np.uint64), blocks)
        words = np.concatenate([np.arange(count) for count in blocks]), ids & _WORD, ids >> _32
        self._counters = [np.tile(word.astype(np.uint32), self._some) for word in words]
        self._work = np.empty((4, 2 * min(_CHUNK, self._some * self._a_step)), np.float32)
        starts = accumulate(blocks, initial=0)
        used_words = [4 * start + np.arange(size) for start, size in zip(starts, sizes, strict=False)]
        self._used_words = torch.from_numpy(np.concatenate(used_words))  # a parameter's last block may have some over

    def __call__(
        self, seeds: Sequence[int], steps: Sequence[int], out: Float[Tensor, "seeds steps d"] | None = None
    ) -> Float[Tensor, "seeds steps d"]:
        """Draw z, the parameters one after the other in the last dimension, float32; written to ``out`` if given.

        Raises:
            ValueError: If a seed, a step or a size does not fit its field of the key, or ``out`` is no contiguous
                float32 tensor of that shape on the CPU.
        """
        shape = len(seeds), len(steps), sum(self.sizes)
        if out is not None:
            _check_out(out, shape)
        if not len(seeds) or not len(steps):
            return torch.empty(shape, dtype=torch.float32) if out is None else out
        for seed, step in ((min(seeds), min(steps)), (max(seeds), max(steps))):
            check_key(seed, step, 0, 0, max(self.sizes))
        times, width = np.asarray(steps, np.uint32), 4 * self._a_step
        whole = len(self._used_words) == width
        z = out if whole and out is not None else torch.empty(*shape[:2], width, dtype=torch.float32)
        for first in range(0, len(steps), self._some):
            step_words = np.repeat(times[first : first + self._some], self._a_step)
            rows = z[:, first : first + self._some].view(len(seeds), -1).numpy()
            for lo in range(0, len(step_words), _CHUNK):
                part = slice(lo, min(lo + _CHUNK, len(step_words)))
                element, low, high = (word[part] for word in self._counters)
                uniform, angle, cosine, sine = self._work[:, : 2 * (part.stop - lo)]
                for row, seed in zip(rows, seeds, strict=True):
                    _uniforms(element, low, step_words[part], high, np.uint64(seed), uniform, angle)
                    np.log(uniform, out=uniform)
                    np.cos(angle, out=cosine)
                    np.sin(angle, out=sine)
                    _products(uniform, cosine, sine, row[4 * lo : 4 * part.stop])
        return z if whole else torch.index_select(z, -1, self._used_words, out=out)


def _check_out(out: Tensor, shape: tuple[int, int, int]) -> None:
    """Compiled code writes where it is told to."""
    kind = out.dtype, out.device.type, out.is_contiguous()
    if out.shape != shape or kind != (torch.float32, "cpu", True):
        raise ValueError(
            f"out must be a contiguous float32 tensor of shape {shape} on the CPU, got {out.dtype} of shape "
            f"{tuple(out.shape)}, strides {out.stride()}, on {out.device}"
        )


@njit(error_model="numpy")
def _uniforms(
    element: np.ndarray,
    low: np.ndarray,
    step: np.ndarray,
    high: np.ndarray,
    seed: np.uint64,
    uniform: np.ndarray,
    angle: np.ndarray,
) -> None:
    """Two uniforms and two angles of each counter, see `helene.noise`; words are in 64 bits for the wide products."""
    for i in range(len(element)):
        x0, x1, x2, x3 = np.uint64(element[i]), np.uint64(low[i]), np.uint64(step[i]), np.uint64(high[i])
        k0, k1 = seed & _WORD, seed >> _32
        for _ in range(ROUNDS):
            p, q = x0 * _M0, x2 * _M1
            x0, x1, x2, x3 = (q >> _32) ^ x1 ^ k0, q & _WORD, (p >> _32) ^ x3 ^ k1, p & _WORD
            k0, k1 = (k0 + _W0) & _WORD, (k1 + _W1) & _WORD
        uniform[2 * i] = np.float32(np.uint32(x0)) * _UNIT + _HALF_UNIT
        uniform[2 * i + 1] = np.float32(np.uint32(x2)) * _UNIT + _HALF_UNIT
        angle[2 * i] = np.float32(np.uint32(x1) >> _8) * _ANGLE
        angle[2 * i + 1] = np.float32(np.uint32(x3) >> _8) * _ANGLE


@njit(error_model="numpy")
def _products(log: np.ndarray, cosine: np.ndarray, sine: np.ndarray, z: np.ndarray) -> None:
    """The two normals of each logarithm and angle."""
    for i in range(len(log)):
        radius = math.sqrt(_MINUS_TWO * log[i])
        z[2 * i], z[2 * i + 1] = radius * cosine[i], radius * sine[i]
