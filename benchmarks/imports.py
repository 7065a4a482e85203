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
        code = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"
        differences = []
        for _ in range(3):
            pair = [
                float(subprocess.run([sys.executable, "-c", code.format(m)], capture_output=True, check=True).stdout)
                for m in ("import torch", "import torch; from helene import MeZO")
            ]
            differences.append(pair[1] - pair[0])
        return statistics.median(differences)
