from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))  # for engine_models, kernel_updates


@pytest.fixture(autouse=True)
def _needs_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    pytest.importorskip("triton")
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda")
