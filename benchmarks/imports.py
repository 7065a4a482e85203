"""What `import helene` costs, alone and beyond torch."""

from __future__ import annotations

import subprocess
import sys

from .common import subject

OURS = "from helene import MeZO"


class Import:
    """Fresh interpreters."""

    warmup_time = 0.0
    rounds = 1
    repeat = (2, 5, 10.0)

    def setup(self) -> None:
        with subject():
            from helene import MeZO  # noqa: F401

    def time_import_helene(self) -> None:
        """An interpreter's start and the import of torch included."""
        subprocess.run([sys.executable, "-c", OURS], check=True)


class BeyondTorch:
    """What is imported after torch, the fastest of three interpreters."""

    version = "1"
    unit = "seconds"

    def setup(self) -> None:
        with subject():
            from helene import MeZO  # noqa: F401

    def track_import_helene_minus_import_torch(self) -> float:
        code = f"import time, torch; start = time.perf_counter(); {OURS}; print(time.perf_counter() - start)"
        command = [sys.executable, "-c", code]
        return min(float(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(3))
