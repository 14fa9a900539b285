"""Whole scripts that ``divisible port`` rewrites, with the data and times that suit."""

from __future__ import annotations

import shlex
from typing import NamedTuple

from benchmarks.old_repositories.made_up import images
from benchmarks.old_repositories.program import MakesData


class Port(NamedTuple):
    """A script of a public repository.

    Attributes:
        repository: ``owner/name``.
        commit: Commit of the tree, or its first digits.
        kind: Kind of the network.
        script: Script to rewrite, from ``folder``.
        arguments: Its arguments, as one types them.
        folder: Folder that it is started in.
        printed: Regular expression of losses that it prints; empty if it has a log.
        data: Functions that write the files that it reads into that folder.
        needs: Packages from PyPI, with conditions.
        modes: Modes of ``chainer_compat``.
    """

    repository: str
    commit: str
    kind: str
    script: str
    arguments: str = ""
    folder: str = ""
    printed: str = ""
    data: tuple[MakesData, ...] = ()
    needs: tuple[str, ...] = ()
    modes: str = "names,cupy"

    @property
    def name(self) -> str:
        """Name of the folder of its tree."""
        return self.repository.replace("/", "+")

    @property
    def options(self) -> list[str]:
        """Its arguments, one by one."""
        return shlex.split(self.arguments)


TUTORIAL = "corochann/deep-learning-tutorial-with-chainer", "2d482e96074f"
EINCONV = "pfnet-research/einconv", "400e641a3c19"
EXAMPLES = "nocotan/chainer-examples", "d2b736231c6a"
REGRESSION = "tanakatsu/chainer_mnist_regression", "522b50e67f3c"
TRAINERS = "rystylee/chainer-mnist", "e548d894ab72"

#: Losses that loops print.
LOSS = r"loss=([\d.e-]+)"

#: All scripts, in the order of the result. None draws random numbers in its network:
#: those of a pipeline are other ones.
PORTS = (
    Port(
        *TUTORIAL,
        kind="image classification",
        script="train_mnist_4_trainer.py",
        arguments="-e 3",
        folder="src/02_mnist_mlp",
    ),
    Port(
        *TUTORIAL,
        kind="loop without updater",
        script="train_mnist_1_minimum.py",
        folder="src/02_mnist_mlp",
        printed=LOSS,
    ),
    Port(
        *TUTORIAL,
        kind="image classification",
        script="train_cifar10.py",
        arguments="-e 3 -b 20",
        folder="src/04_cifar_cnn",
    ),
    Port(
        *TUTORIAL,
        kind="image classification",
        script="train_cifar100.py",
        arguments="-e 3 -b 20",
        folder="src/04_cifar_cnn",
    ),
    Port(
        "ktnyt/cat_chainer",
        "048ecefda8cc",
        kind="image classification",
        script="train.py",
        arguments="--model MLP -e 3",
    ),
    Port(*EXAMPLES, kind="image classification", script="mnist/mnist_cnn.py"),
    Port(*EXAMPLES, kind="image classification", script="mnist/mnist_mlp.py"),
    Port(
        *EINCONV,
        kind="tensor network",
        script="train_fmnist.py",
        arguments="-e 2 -b 50 --channels 8 16",
    ),
    Port(
        *EINCONV,
        kind="tensor network",
        script="train_3d.py",
        arguments="-e 2 -b 100 --channels 2 4",
    ),
    Port(
        *TRAINERS,
        kind="image classification",
        script="train_mnist_mlp.py",
        arguments="-g -1 -e 3",
        folder="trainer",
    ),
    Port(
        *TRAINERS,
        kind="image classification",
        script="train_cifar_10.py",
        arguments="-g -1 -e 3 -b 20",
        folder="trainer",
    ),
    Port(
        *REGRESSION,
        kind="loop without updater",
        script="train_mnist_regression.py",
        arguments="-e 2 -b 1000 -u 50",
        printed=LOSS,
        data=(images.one_pickle("mnist.pkl"),),
        modes="names,cupy,chainer1",
    ),
    Port(
        *REGRESSION,
        kind="regression",
        script="train_mnist_regression2.py",
        arguments="-e 3 -u 50",
    ),
    Port(
        "takyamamoto/CIFAR-ConvolutionalAutoEncoder-Chainer",
        "0e69bfc49c63",
        kind="autoencoder",
        script="train.py",
        arguments="-e 3 -b 20",
        needs=("tqdm",),
    ),
)
