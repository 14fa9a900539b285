"""Runs a script as it is, after the seeds that ``divisible port`` writes into its port.

python -m benchmarks.old_repositories.seeded SCRIPT [ARGUMENT ...]
"""

from __future__ import annotations

import os
import random
import runpy
import sys


def main() -> None:
    """Runs the script."""
    import numpy as np

    script = sys.argv[1]
    random.seed(0)
    np.random.seed(0)
    sys.argv[:] = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
