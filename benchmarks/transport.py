"""Messages between two ranks: ours, ChainerMN's, and with a progress thread.

    OMP_NUM_THREADS=1 mpiexec -n 2 python -m benchmarks.transport

``messages``: an array goes to the other rank and back. The ways are
divisible.communication.transport, ChainerMN's send and recv, and mpi4py's blocking
calls into an array that exists already. Half of the time there and back is the time of
a message. Shapes are agreed before, as in the second and later steps of training.

``loop``: the paper's loop (its Fig. 4) against pipeline.Pipeline with the same
schedule, GPipe, over ChainerMN and over our transport.

``overlap``: both ranks send an array to each other and multiply matrices meanwhile. The
message moves without any polling, with a poll between two products, or with a thread
that polls MPI every 0.2 ms while the products run (which release the interpreter's
lock). The time that messages add to the products should become less.

All variants take turns within one run. On one machine messages are copies in memory;
over TCP, run it on two hosts, such as those of benchmarks.cluster.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from pathlib import Path
from typing import Callable

import chainermn
import numpy as np
from mpi4py import MPI

from benchmarks.common.perceptron import cut, minibatch, mlp, paper_loop, step_seconds
from benchmarks.common.results import Result, alternate, command, machine, ratios
from benchmarks.common.two_ranks import two_ranks
from divisible.communication.signatures import Tensor
from divisible.communication.transport import Transport
from pipeline import Pipeline

KIB, MIB = 2**10, 2**20
PARTS = ("messages", "loop", "overlap")
POLL_SECONDS = 200e-6
PAUSE = 0.002
TIMEOUT = 300.0


def text_of(n_bytes: int) -> str:
    """Writes a number of bytes."""
    return f"{n_bytes // MIB} MiB" if n_bytes >= MIB else f"{n_bytes // KIB} KiB"


class PingPong:
    """The ways for an array to go to the other rank and back."""

    def __init__(self, comm: MPI.Comm, n_bytes: int, dtype: type) -> None:
        self.comm, self.peer = comm, 1 - comm.rank
        self.array = np.ones(n_bytes // np.dtype(dtype).itemsize, dtype)
        self.received = np.empty_like(self.array)
        transport = Transport(comm.Dup(), TIMEOUT)
        self.sender = transport.sender(comm.rank, self.peer)
        self.receiver = transport.receiver(self.peer, self.peer)
        self.transport = transport
        self.chainermn = chainermn.create_communicator("naive", comm)
        # Plenty of small ones for the clock, few large ones for patience.
        self.repeats = max(3, min(200, 64 * MIB // n_bytes))

    def ours(self) -> None:
        """Over divisible.communication.transport."""
        for _ in range(self.repeats):
            self.receiver.post(0)
            if self.comm.rank == 0:
                self.sender.send(0, (Tensor(self.array),))
            (received,) = self.receiver.receive(0, "the benchmark")
            if self.comm.rank == 1:
                self.sender.send(0, (Tensor(received.array),))
            del received
            self.transport.flush()

    def with_chainermn(self) -> None:
        """Over ChainerMN."""
        for _ in range(self.repeats):
            if self.comm.rank == 0:
                self.chainermn.send(self.array, self.peer, 0)
                self.chainermn.recv(self.peer, 0)
            else:
                self.chainermn.send(self.chainermn.recv(self.peer, 0), self.peer, 0)

    def with_mpi(self) -> None:
        """With blocking MPI, in bytes."""
        array, received = ([a.view(np.uint8), MPI.BYTE] for a in self._arrays())
        for _ in range(self.repeats):
            if self.comm.rank == 0:
                self.comm.Send(array, self.peer)
                self.comm.Recv(received, self.peer)
            else:
                self.comm.Recv(received, self.peer)
                self.comm.Send(received, self.peer)

    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        return self.array, self.received


def messages(comm: MPI.Comm, arguments: argparse.Namespace, result: Result) -> None:
    """Times messages of all sizes."""
    result.write(
        f"{'messages':<16} {'ours us':>10} {'ChainerMN us':>13} {'MPI us':>10}"
        f" {'ours GB/s':>10}  ChainerMN/ours"
    )
    for dtype in (np.float32, np.float16):
        for n_bytes in arguments.sizes:
            ways = PingPong(comm, n_bytes, dtype)
            variants = {
                "ours": ways.ours,
                "ChainerMN": ways.with_chainermn,
                "MPI": ways.with_mpi,
            }
            for variant in variants.values():
                step_seconds(comm, variant, PAUSE)
            seconds = alternate(
                variants,
                arguments.rounds,
                lambda variant: step_seconds(comm, variant, PAUSE),
            )
            median = {
                name: statistics.median(values) / ways.repeats / 2
                for name, values in seconds.items()
            }
            result.write(
                f"{np.dtype(dtype).name} {text_of(n_bytes):>8} "
                f"{1e6 * median['ours']:10.0f} {1e6 * median['ChainerMN']:13.0f} "
                f"{1e6 * median['MPI']:10.0f} {n_bytes / median['ours'] / 1e9:10.2f}  "
                f"{ratios(seconds['ChainerMN'], seconds['ours'])}"
            )
    result.write()


def loop(comm: MPI.Comm, arguments: argparse.Namespace, result: Result) -> None:
    """Times the paper's loop against the same schedule of ours."""
    n = arguments.microbatches
    data = minibatch(arguments.width, arguments.batch)
    stage = cut(mlp(arguments.width, arguments.layers), 2, comm.rank)
    module, loop_comm = paper_loop(), chainermn.create_communicator("naive")
    loop_stage = cut(mlp(arguments.width, arguments.layers), 2, comm.rank)

    def fig4() -> None:
        loop_stage.cleargrads()
        size = -(-arguments.batch // n)
        module.train_minibatch(loop_comm, loop_stage, *data, arguments.batch, size)

    variants: dict[str, Callable] = {"Fig. 4 over ChainerMN": fig4}
    for transport in ("chainermn", "mpi"):
        pipe = Pipeline(
            stage, comm, n_microbatches=n, schedule="gpipe", transport=transport
        )
        variants[f"Pipeline, gpipe, {transport}"] = lambda pipe=pipe: pipe.step(*data)
    for variant in variants.values():
        step_seconds(comm, variant, PAUSE)
    seconds = alternate(
        variants, arguments.rounds, lambda step: step_seconds(comm, step, PAUSE)
    )
    base = seconds["Fig. 4 over ChainerMN"]
    result.write(
        f"loop: {arguments.layers} layers of width {arguments.width}, batch "
        f"{arguments.batch}, {n} microbatches",
        f"{'':<26} {'ms':>7}  Fig. 4 / this",
    )
    for name, values in seconds.items():
        result.write(
            f"{name:<26} {1e3 * statistics.median(values):7.0f}  {ratios(base, values)}"
        )
    result.write()


class Overlap:
    """Both ranks send an array to each other, and compute."""

    def __init__(self, comm: MPI.Comm, n_bytes: int, n_products: int) -> None:
        self.comm, self.peer = comm, 1 - comm.rank
        self.sent, self.received = np.ones(n_bytes, "u1"), np.empty(n_bytes, "u1")
        self.a, self.b, self.c = (np.ones((512, 512), "f") for _ in range(3))
        self.n_products = n_products
        self.requests: list[MPI.Request] = []

    def compute(self, look: Callable[[], object] = lambda: None) -> None:
        """Multiplies, and looks after the messages in between."""
        for _ in range(self.n_products):
            np.dot(self.a, self.b, out=self.c)
            look()

    def start(self) -> None:
        """Starts the messages."""
        self.requests = [
            self.comm.Irecv([self.received, MPI.BYTE], self.peer),
            self.comm.Isend([self.sent, MPI.BYTE], self.peer),
        ]

    def wait(self) -> None:
        """Waits for the messages, without using the core."""
        while not self.look():
            time.sleep(POLL_SECONDS)

    def look(self) -> bool:
        """Polls MPI, and returns whether the messages have arrived."""
        return MPI.Request.Testall(self.requests)

    def alone(self) -> None:
        """The messages alone."""
        self.start()
        self.wait()

    def nothing(self) -> None:
        """Nothing looks after the messages while the rank computes."""
        self.start()
        self.compute()
        self.wait()

    def between(self) -> None:
        """The rank looks between two products."""
        self.start()
        self.compute(self.look)
        self.wait()

    def thread(self) -> None:
        """A thread looks all the time."""
        self.start()
        thread = threading.Thread(target=self.wait)
        thread.start()
        self.compute()
        thread.join()


def overlap(comm: MPI.Comm, arguments: argparse.Namespace, result: Result) -> None:
    """Times messages that go while the ranks compute."""
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        result.write("overlap: this MPI does not let threads share it", "")
        return
    result.write(
        "overlap: milliseconds",
        f"{'size':<8} {'products':>8} {'messages':>8} | products and messages: "
        f"{'no looks':>8} {'looks between':>13} {'thread':>7}   thread / no looks",
    )
    for n_bytes in arguments.overlap_sizes:
        ways = Overlap(comm, n_bytes, arguments.products)
        variants = {
            "products": ways.compute,
            "messages": ways.alone,
            "no looks": ways.nothing,
            "between": ways.between,
            "thread": ways.thread,
        }
        for variant in variants.values():
            step_seconds(comm, variant, PAUSE)
        seconds = alternate(
            variants,
            3 * arguments.rounds,
            lambda step: step_seconds(comm, step, PAUSE),
        )
        ms = [1e3 * statistics.median(values) for values in seconds.values()]
        pays = ratios(seconds["thread"], seconds["no looks"])
        result.write(
            f"{text_of(n_bytes):<8} {ms[0]:8.1f} {ms[1]:8.1f} | {'':22} {ms[2]:8.1f} "
            f"{ms[3]:13.1f} {ms[4]:7.1f}   {pays}"
        )
    result.write()


def main() -> None:
    """Runs the comparisons and writes their result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=[KIB, 16 * KIB, 256 * KIB, MIB, 4 * MIB, 64 * MIB, 256 * MIB],
    )
    parser.add_argument(
        "--overlap-sizes",
        type=int,
        nargs="+",
        default=[256 * KIB, MIB, 4 * MIB, 16 * MIB],
    )
    parser.add_argument("--products", type=int, default=40, help="of 512 x 512")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1200)
    parser.add_argument("--microbatches", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    comm = two_ranks(parser)
    result = Result("transport", arguments.output, silent=comm.rank != 0)
    result.write(
        command("OMP_NUM_THREADS=1 mpiexec -n 2"),
        machine("numpy", "chainer", "mpi4py", "mpich"),
        f"{arguments.rounds} rounds; medians, ratios with (min..max)",
        "",
    )
    run = {"messages": messages, "loop": loop, "overlap": overlap}
    for part in arguments.parts:
        run[part](comm, arguments, result)
    result.save()


if __name__ == "__main__":
    main()
