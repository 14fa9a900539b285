"""The command: ``python -m benchmarks.paper_exchange --help``."""

from benchmarks.paper_exchange.cli import main

if __name__ == "__main__":
    main()
