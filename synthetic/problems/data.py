"""The data sets that come with scikit-learn, as tensors."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor


@cache
def load_data(name: str) -> tuple[Tensor, Tensor]:
    r"""Centred and scaled inputs (N, D) float64 and labels (N,) int64 of a bundled data set.

    ``breast_cancer`` (569, 30); ``digits`` (every fifth image: 360, 64), ``digits_16`` its 4 x 4 averages, labels the
    ten digits, with ``_parity`` behind either name odd against even; ``wine`` (178, 13) and ``iris`` (150, 4), three
    classes. Columns have unit variance; the pixels of the digits share one scale, for some are nearly always blank.

    Raises:
        ValueError: If the name is none of these.
    """
    from sklearn import datasets

    base, _, parity = name.partition("_parity")
    load = {
        "breast_cancer": datasets.load_breast_cancer,
        "digits": datasets.load_digits,
        "digits_16": datasets.load_digits,
        "wine": datasets.load_wine,
        "iris": datasets.load_iris,
    }.get(base)
    if load is None or parity:
        raise ValueError(
            f"data must be breast_cancer, digits, digits_16, wine or iris (or digits*_parity), got {name!r}"
        )
    inputs, labels = load(return_X_y=True)
    if base.startswith("digits"):
        inputs, labels = inputs[::5], labels[::5]
    if base == "digits_16":
        inputs = inputs.reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(-1, 16)
    if name.endswith("_parity"):
        labels = labels % 2
    inputs = inputs - inputs.mean(0)
    spread = inputs.std() if base.startswith("digits") else inputs.std(0)
    inputs = inputs / np.where(spread > 0, spread, 1.0)
    return torch.from_numpy(inputs), torch.from_numpy(labels.astype(np.int64))
