"""All loops: those of kernels, and those of Chainer's update rules.

A loop is made when its module is loaded, and that of an update rule when a rule of its
formula is asked for. This module loads and asks for all of them.
"""

from __future__ import annotations

import importlib
import pkgutil

from chainer_kernels import loops
from chainer_kernels.chainer_rules import FORMULAS
from chainer_kernels.compiling import LOOPS, Loop
from chainer_kernels.optimizer_loops_cpu import array_loop


def compile_all() -> list[Loop]:
    """Compiles every loop that this processor can run, or finds it on disk.

    Returns:
        The loops, in the order in which they were made.
    """
    for module in pkgutil.iter_modules(loops.__path__):
        importlib.import_module(f"chainer_kernels.loops.{module.name}")
    for formula in FORMULAS:
        array_loop(formula)
    possible = [each for each in LOOPS if each.is_possible]
    for each in possible:
        each.compiled  # noqa: B018
    return possible
