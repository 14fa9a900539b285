"""A run of the perceptron on the ranks of a benchmark, from its arguments."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import NamedTuple

import chainer
import numpy as np
from mpi4py import MPI

from benchmarks.common.perceptron import cut, minibatch, mlp
from benchmarks.common.results import Result, command, machine
from pipeline import Pipeline


class PerceptronRun(NamedTuple):
    """The parts of a run; see :meth:`of_arguments`.

    Attributes:
        arguments: Arguments of the command: its sizes, and numbers of steps and rounds.
        comm: All ranks.
        result: The file of results, whose head is written.
        pipe: The pipeline.
        optimizer: Optimizer of this rank's stage.
        x: Inputs of a minibatch.
        t: Targets.
    """

    arguments: argparse.Namespace
    comm: MPI.Comm
    result: Result
    pipe: Pipeline
    optimizer: chainer.Optimizer
    x: np.ndarray
    t: np.ndarray

    @classmethod
    def of_arguments(cls, name: str, description: str) -> PerceptronRun:
        """Makes a run of the paper's 32 fully connected layers, or of given sizes.

        Args:
            name: Name of the benchmark.
            description: Text for ``--help``.
        """
        parser = argparse.ArgumentParser(description=description.split("\n")[0])
        parser.add_argument("--width", type=int, default=1024)
        parser.add_argument("--layers", type=int, default=32)
        parser.add_argument("--batch", type=int, default=1200)
        parser.add_argument("--microbatches", type=int, default=5)
        parser.add_argument("--steps", type=int, default=3, help="in each round")
        parser.add_argument("--rounds", type=int, default=10)
        parser.add_argument("--output", type=Path)
        args = parser.parse_args()
        if os.environ.get("OMP_NUM_THREADS") != "1":
            parser.error("set OMP_NUM_THREADS=1: the ranks share the cores")
        comm = MPI.COMM_WORLD
        result = Result(name, args.output, silent=comm.rank > 0)
        result.write(
            command(f"OMP_NUM_THREADS=1 mpiexec -n {comm.size}"),
            machine("numpy", "chainer", "mpi4py"),
            f"{args.layers} layers of width {args.width}, {args.batch} samples in"
            f" {args.microbatches} microbatches on {comm.size} ranks; {args.rounds}"
            f" rounds of {args.steps} minibatches",
            "",
        )
        stage = cut(mlp(args.width, args.layers), comm.size, comm.rank)
        optimizer = chainer.optimizers.SGD(1e-4).setup(stage)
        pipe = Pipeline(stage, comm, n_microbatches=args.microbatches)
        return cls(
            args, comm, result, pipe, optimizer, *minibatch(args.width, args.batch)
        )
