"""Models that become pipelines on two ranks."""

from __future__ import annotations

from typing import NamedTuple


class Model(NamedTuple):
    """A model of a public repository.

    Attributes:
        repository: ``owner/name``.
        commit: Commit of the tree, or its first digits.
        kind: Kind of the network.
        module: Module that has it, imported from ``folder``.
        expression: Expression that makes it, with the names of the module.
        inputs: Dtypes and shapes of its inputs, as for ``with_model.py``.
        target: Dtype and shape of the target.
        loss: Function of ``chainer.functions`` of the output and the target, or
            ``mean_square`` of all outputs.
        folder: Folder that its modules are imported from.
        call: Method that is called, or nothing for the chain itself.
        needs: Packages from PyPI.
        modes: Modes of ``chainer_compat``.
    """

    repository: str
    commit: str
    kind: str
    module: str
    expression: str
    inputs: tuple[str, ...]
    target: str = "i4<10:4"
    loss: str = "softmax_cross_entropy"
    folder: str = ""
    call: str = ""
    needs: tuple[str, ...] = ()
    modes: str = "names,cupy"

    @property
    def name(self) -> str:
        """Name of the folder of its tree."""
        return self.repository.replace("/", "+")
