"""The rules: one for each noun of a training script."""

from __future__ import annotations

from typing import Callable, NamedTuple

from pipeline.porting import (
    chainermn_scripts,
    classifier,
    devices,
    evaluators,
    folders,
    hooks,
    iterators,
    loops,
    losses,
    normalization,
    prints,
    snapshots,
    updaters,
)
from pipeline.porting.findings import Finding
from pipeline.porting.parts import Parts
from pipeline.porting.script import Script


class Rule(NamedTuple):
    """A rule about one noun.

    Attributes:
        noun: Name of the noun.
        finds: Code that it finds.
        writes: Code that it writes in its place.
        page: Page of the documentation about it.
        find: Function of a script and its parts that returns findings.
    """

    noun: str
    finds: str
    writes: str
    page: str
    find: Callable[[Script, Parts], list[Finding]]


#: Rules in the order in which they are asked: first what the parts are, then the rest.
RULES = tuple(
    Rule(each.NOUN, each.FINDS, each.WRITES, each.PAGE, each.find)
    for each in (
        classifier,
        loops,
        losses,
        normalization,
        iterators,
        chainermn_scripts,
        updaters,
        evaluators,
        snapshots,
        devices,
        hooks,
        folders,
        prints,
    )
)
