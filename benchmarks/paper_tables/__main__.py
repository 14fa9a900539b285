"""The command: ``python -m benchmarks.paper_tables --help``."""

from benchmarks.paper_tables.cli import main

if __name__ == "__main__":
    main()
