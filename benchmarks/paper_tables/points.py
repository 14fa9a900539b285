"""The points of the paper's figures, scaled to this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.common.hosts import Hosts
from benchmarks.paper_tables.arithmetic import NUMPY, UNSTATED, Arithmetic

#: The speed-ups over the undivided step that the text of the paper has, in its sections
#: 5.1 and 7: processes, microbatches, speed-up.
PRINTED = {
    "mlp": {2: (5, 1.34), 4: (5, 1.93), 8: (20, 2.70), 16: (20, 3.49), 32: (20, 3.72)},
    "vgg16": {8: (20, 2.32)},
}
#: The numbers of microbatches from which Fig. 12 finds the constants of equation (3).
FIT = (3, 12, 40)

#: Learning rate of the updates. With random labels and 0.01 the parameters of VGG16
#: overflow after some steps, and numbers that are not finite take other times.
LEARNING_RATE = 1e-6
MLP_LAYERS = 32
N_CLASSES = 10
#: Sections 5 and 7.
BATCH = {"mlp": 1200, "vgg16": 84, "resnet50": 90}
MICROBATCHES = {
    "mlp": (1, 2, 3, 5, 8, 12, 20, 40, 80),
    "vgg16": (1, 2, 3, 4, 7, 12, 20, 28, 42),
    "resnet50": (1, 2, 3, 5, 9, 15, 20, 30, 45),
}
#: The hosts and the numbers of microbatches of a quick run.
QUICK_HOSTS = {"mlp": (2, 4), "vgg16": (2, 4, 8), "resnet50": (2, 4, 8)}
QUICK_MICROBATCHES = {"mlp": (1, *FIT, 20), "vgg16": (20,), "resnet50": (20,)}
#: Most units of a layer of perceptrons that a quick run has on any number of hosts.
QUICK_WIDTH = 896
#: Microbatches of 600, 240, 120, 60 and 30 samples in Fig. 9 to 11.
SIZES_MICROBATCHES = (1, 2, 5, 10, 20, 40)
#: The folder of samples and profiles, and the file of samples in it.
DATA = Path(__file__).parent / "data"
SAMPLES = "samples.jsonl"
#: Input sizes of Fig. 9 to 11.
PAPER_SIZES = (1000, 2000, 3000, 5000, 10000)
PAPER_WIDTH = 5000
RATE = "1gbit"
#: Fig. 8 has InfiniBand between nodes and NVLink within one.
RATES = ("100mbit", "1gbit", "10gbit")
#: In place of a schedule: the undivided model, and the paper's loop over ChainerMN.
SERIAL, FIG4 = "serial", "fig4"
EQUAL, OURS = "equal layers", "ours"
#: How a step trains: see `Point.way`.
AS_PRINTED, EQUAL_LAYERS, BEST_PLAN = (
    "as in the paper",
    "equal layers, 1F1B",
    "best plan",
)
WAYS = (AS_PRINTED, EQUAL_LAYERS, BEST_PLAN)


@dataclass(frozen=True)
class Point:
    """One step that is timed.

    Attributes:
        model: ``'mlp'``, ``'vgg16'`` or ``'resnet50'``.
        size: Units of a layer, or pixels on a side.
        batch: Samples of the minibatch.
        hosts: Number of hosts, each with an equal share of the machine.
        microbatches: Number of microbatches.
        rate: Rate of a host's link.
        cut: ``EQUAL`` or ``OURS``.
        schedule: Name of the schedule; ``SERIAL`` for the undivided model in plain
            Chainer on one of the hosts; ``FIG4`` for the paper's loop over ChainerMN.
        kernels: Whether the kernels are in force; see `Arithmetic`.
        provider: Provider of products and convolutions; see `Arithmetic`.
        update: Whether the step has the update of the parameters, besides forward and
            backward.
    """

    model: str
    size: int
    batch: int
    hosts: int
    microbatches: int
    rate: str = RATE
    cut: str = EQUAL
    schedule: str = "1f1b"
    kernels: str = UNSTATED
    provider: str = NUMPY
    update: bool = False

    @property
    def arithmetic(self) -> Arithmetic:
        """The kernels and the provider."""
        return Arithmetic(self.kernels, self.provider)

    @property
    def way(self) -> str:
        """The cut and what runs it, in words."""
        if self.schedule == FIG4:
            return AS_PRINTED
        return EQUAL_LAYERS if self.cut == EQUAL else BEST_PLAN

    @property
    def serial(self) -> Point:
        """The undivided step that this is compared with."""
        return replace(self, microbatches=1, cut=EQUAL, schedule=SERIAL)

    @property
    def group(self) -> tuple:
        """The points that are measured while the same hosts are up."""
        return (
            *(self.kernels, self.provider),
            *(self.model, self.size, self.batch, self.hosts, self.rate),
        )

    @property
    def on_any_hosts(self) -> Point:
        """The points that differ in the hosts and their links only are equal here."""
        return replace(self, hosts=0, rate=RATE)

    @property
    def series(self) -> Point:
        """The points that differ in the number of microbatches only are equal here."""
        return replace(self, microbatches=0)

    @property
    def samples(self) -> int:
        """Samples of the largest microbatch."""
        return -(-self.batch // self.microbatches)

    @property
    def turns(self) -> int:
        """Number of microbatches that the step has.

        Fig. 4 cuts a minibatch into microbatches of equal size, and a smaller last one.
        Of 84 samples in 20 microbatches each has 5, so that there are 17.
        """
        if self.schedule == FIG4:
            return -(-self.batch // self.samples)
        return self.microbatches

    def on(self, cpu: float) -> Hosts:
        """Returns the hosts.

        Args:
            cpu: Share of all hosts together, in cores.
        """
        return Hosts(self.hosts, min(1.0, cpu / self.hosts), self.rate)


@dataclass(frozen=True)
class Scale:
    """The sizes of the experiments.

    Attributes:
        width: Width of the perceptron's layers, for the paper's 5,000.
        image: Pixels on a side of VGG16's and ResNet50's images.
        batch: Samples in place of the paper's 1,200, 84 and 90, for trying out.
        arithmetic: Kernels and provider of the steps.
        update: Whether steps have the update.
    """

    width: int = 2048
    image: int = 32
    batch: int | None = None
    arithmetic: Arithmetic = Arithmetic()
    update: bool = False

    def of(self, model: str, hosts: int, microbatches: int, **options: str) -> Point:
        """Returns a point of the usual size."""
        size = self.width if model == "mlp" else self.image
        batch = self.batch or BATCH[model]
        return Point(
            *(model, size, batch, hosts, microbatches),
            **options,
            **self.arithmetic._asdict(),
            update=self.update,
        )

    def widths(self) -> dict[int, int]:
        """Returns the width for each input size of the paper, in steps of 64."""
        per_unit = self.width / PAPER_WIDTH
        return {size: max(64, round(size * per_unit / 64) * 64) for size in PAPER_SIZES}


def figures(scale: Scale) -> dict[int, list[Point]]:
    """Returns the points of each figure; Fig. 7 and 12 show those of Fig. 6."""
    found: dict[int, list[Point]] = {
        6: [
            scale.of("mlp", hosts, m)
            for hosts in (1, 2, 4, 8, 16, 32)
            for m in MICROBATCHES["mlp"]
        ],
        8: [
            scale.of("mlp", 4, m, rate=rate)
            for rate in RATES
            for m in MICROBATCHES["mlp"]
        ],
    }
    for figure, hosts in ((9, 4), (10, 8), (11, 16)):
        found[figure] = [
            replace(scale.of("mlp", hosts, m), size=width)
            for width in scale.widths().values()
            for m in SIZES_MICROBATCHES
        ]
    for figure, model in ((13, "vgg16"), (14, "resnet50")):
        # With one or two microbatches all wait for all, wherever the cuts are.
        numbers = MICROBATCHES[model]
        found[figure] = [
            scale.of(model, hosts, m, cut=cut, schedule=schedule)
            for hosts in (2, 4, 8, 16)
            for cut, schedule, first in (
                (EQUAL, FIG4, 0),
                (EQUAL, "1f1b", 0),
                (OURS, "1f1b", 2),
                (OURS, "zb_h1", 2),
            )
            for m in numbers[first:]
        ]
    return {
        figure: [point for point in points if point.microbatches <= point.batch]
        for figure, points in found.items()
    }


def quick(points: Iterable[Point]) -> list[Point]:
    """Returns some points of every figure, which take minutes."""
    return [
        point
        for point in points
        if (point.hosts in QUICK_HOSTS[point.model] or _is_narrow(point))
        and point.microbatches in QUICK_MICROBATCHES[point.model]
        and (point.cut, point.schedule) != (OURS, "1f1b")
    ]


def _is_narrow(point: Point) -> bool:
    return point.model == "mlp" and point.size <= QUICK_WIDTH


def with_serial(points: Iterable[Point], few: bool = False) -> list[Point]:
    """Returns the points, each once, behind the undivided steps they need.

    Args:
        points: Points to compare with the undivided step.
        few: Whether one number of hosts is enough for the undivided step: the fewest,
            whose shares of a core are the largest.
    """
    points = list(dict.fromkeys(points))
    serial = list(dict.fromkeys(point.serial for point in points))
    if few:
        fewest: dict[Point, Point] = {}
        for point in sorted(serial, key=lambda point: point.hosts):
            fewest.setdefault(point.on_any_hosts, point)
        serial = [point for point in serial if point in fewest.values()]
    return [*serial, *points]


def to_json(point: Point) -> dict:
    """Returns what :func:`from_json` reads."""
    return dataclasses.asdict(point)


def from_json(content: dict) -> Point:
    """Returns a point."""
    return Point(**content)
