"""Runs ``python -m benchmarks.rebalancing``; see `benchmarks.rebalancing`."""

from __future__ import annotations

import argparse
from pathlib import Path

import benchmarks.rebalancing as package
from benchmarks.common.hosts import add_hosts_arguments, keep_freed_memory, prepare
from benchmarks.rebalancing import replicas, stages
from benchmarks.rebalancing.changes import SLOW_HOST


def main() -> None:
    """Measures one part, and writes the result."""
    parser = argparse.ArgumentParser(description=package.__doc__.splitlines()[0])
    add_hosts_arguments(parser)
    add = parser.add_argument
    add("--replicas", action="store_true", help="two pipelines of two hosts each")
    add("--hosts", type=int, default=4, help="of one pipeline")
    add("--layers", type=int, default=24)
    add("--width", type=int, default=512)
    add("--batch", type=int, default=256)
    add("--microbatches", type=int, default=8)
    add("--every", type=int, default=20, help="minibatches between two checks")
    add("--changes", type=int, default=5)
    add("--output", type=Path, help="of the result")
    arguments = parser.parse_args()
    if arguments.hosts <= SLOW_HOST:
        parser.error(f"--hosts must be more than {SLOW_HOST}")
    prepare()
    keep_freed_memory()
    (replicas if arguments.replicas else stages).measure(arguments)


if __name__ == "__main__":
    main()
