"""What `import helene` costs beyond torch."""

from __future__ import annotations

import statistics
import subprocess
import sys


class Import:
    """Fresh interpreters, in turns."""

    version = "1"
    unit = "seconds"

    def track_import_helene_minus_import_torch(self) -> float:
        code = "import time; s = time.perf_counter(); import {}; print(time.perf_counter() - s)"
        differences = []
        for _ in range(3):
            pair = [
                float(subprocess.run([sys.executable, "-c", code.format(m)], capture_output=True, check=True).stdout)
                for m in ("torch", "torch, numpy, helene")
            ]
            differences.append(pair[1] - pair[0])
        return statistics.median(differences)
