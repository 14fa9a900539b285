"""Warnings that point to the line of a user's script."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

#: Top-level names of modules between a user's script and a warning: the packages of
#: this product, and modules that call them in a training.
_BETWEEN = frozenset(
    {
        "chainer",
        "chainer_compat",
        "chainer_kernels",
        "chainermn",
        "contextlib",
        "data_parallel",
        "divisible",
        "functools",
        "heterogeneous",
        "mixed_precision",
        "model_compression",
        "pipeline",
        "torch_layers",
    }
)


def warn_user(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the line of the script that has called these packages.

    ::

        train.py        trainer.run()            <- the warning points here
        chainer         Trainer.run, update
        pipeline        PipelineUpdater.update_core, Pipeline.step
        data_parallel   warn_user(...)

    The line stays right if a call is added between a script and a warning, unlike with
    a counted ``stacklevel``.

    Args:
        text: The warning.
        category: Class of the warning.
    """
    frame: FrameType | None = sys._getframe(1)
    nearest = frame
    while frame is not None and _is_between(frame):
        frame = frame.f_back
    # A thread of these packages may have no script above it.
    where = frame or nearest
    warnings.warn_explicit(
        text,
        category,
        where.f_code.co_filename,
        where.f_lineno,
        where.f_globals.get("__name__"),
        where.f_globals.setdefault("__warningregistry__", {}),
    )


def _is_between(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] in _BETWEEN
