from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "recorded")]  # for engine_models, kernel_updates, small_models
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any module of these tests imports triton, as transformers' does
