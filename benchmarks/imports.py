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
    """In turns with interpreters that import torch alone, the fastest of three each."""

    version = "1"
    unit = "seconds"

    def setup(self) -> None:
        with subject():
            from helene import MeZO  # noqa: F401

    def track_import_helene_minus_import_torch(self) -> float:
        code = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"
        seconds: dict[str, list[float]] = {"import torch": [], f"import torch; {OURS}": []}
        for _ in range(3):
            for imports, found in seconds.items():
                command = [sys.executable, "-c", code.format(imports)]
                found.append(float(subprocess.run(command, capture_output=True, check=True).stdout))
        alone, both = (min(found) for found in seconds.values())
        return both - alone
