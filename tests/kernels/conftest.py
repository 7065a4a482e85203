from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))  # for engine_models, kernel_updates
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any module of these tests imports triton, as transformers' does
