"""The command: ``python benchmarks/paper_tables --help``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # For the modules that all benchmarks share, which lie beside this folder.
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from paper_tables.cli import main

    main()
