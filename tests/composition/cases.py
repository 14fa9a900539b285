"""Cases: a model, a way to run it, and a life, each described by plain values.

A case is printed as one line, from which it can be made again::

    parse(str(case)) == case
"""

from __future__ import annotations

import ast
import dataclasses
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Model:
    """A model that is trained.

    Attributes:
        domain: 'vectors', 'images' or 'words'.
        blocks: Names of blocks of layers between the first and the last one; see
            :mod:`tests.composition.blocks`. The names ``'stash a'`` and ``'pop a add'``
            are ends of a skip connection. The layer of ``'auxiliary p'`` gives the loss
            another term.
        dtype: 'float64', 'float32' or 'float16'.
        ties: Pairs of blocks that share a weight, and whether one has the transpose.
        frozen: Blocks whose parameters are not updated.
        loss: One of :data:`tests.composition.losses.LOSSES`.
        n_inputs: 1 or 2 arrays.
        n_outputs: 1 or 2 variables.
        is_deferred: Whether each rank makes its own layers only.
    """

    domain: str = "vectors"
    blocks: tuple[str, ...] = ()
    dtype: str = "float64"
    ties: tuple[tuple[int, int, bool], ...] = ()
    frozen: tuple[int, ...] = ()
    loss: str = "cross entropy"
    n_inputs: int = 1
    n_outputs: int = 1
    is_deferred: bool = False


@dataclass(frozen=True)
class Way:
    """How it is run.

    Attributes:
        n_ranks: Number of ranks of all replicas.
        n_replicas: Number of replicas; a divisor of ``n_ranks``.
        shares: Ratio of the replicas' samples; none for equal parts.
        schedule: A name of the catalogue, or ``'list N'`` for a random list schedule.
        stage_ranks: Rank of each stage, in its replica.
        cuts: Cuts of the model.
        n_microbatches: Number of microbatches of each replica.
        options: Other arguments of a pipeline, sorted by name.
        exchange: Options of the exchange between replicas, sorted by name.
        has_kernels: Whether ``chainer_kernels`` are on.
        products: Dtype of their products; '' for that of the operands.
    """

    n_ranks: int = 1
    n_replicas: int = 1
    shares: tuple[int, ...] = ()
    schedule: str = "1f1b"
    stage_ranks: tuple[int, ...] = (0,)
    cuts: tuple[int, ...] = ()
    n_microbatches: int = 1
    options: tuple[tuple[str, object], ...] = ()
    exchange: tuple[tuple[str, object], ...] = ()
    has_kernels: bool = True
    products: str = ""

    @property
    def n_pipeline(self) -> int:
        """Number of ranks of a replica."""
        return self.n_ranks // self.n_replicas

    @property
    def has_two_versions(self) -> bool:
        """Whether stages have two weight versions."""
        return self.schedule == "pipedream_2bw"

    @property
    def is_double_buffered(self) -> bool:
        """Whether replicas exchange gradients during the next minibatch."""
        return bool(dict(self.exchange).get("double_buffering"))

    @property
    def is_late(self) -> bool:
        """Whether each update applies the gradients of the minibatch before."""
        return self.has_two_versions or self.is_double_buffered

    def get(self, name: str, default: object = None) -> object:
        """Returns an argument of the pipeline."""
        return dict(self.options).get(name, default)


@dataclass(frozen=True)
class Update:
    """How parameters are updated.

    Attributes:
        rule: 'SGD', 'MomentumSGD' or 'Adam'.
        hooks: Names of hooks of the optimizer.
        loss_scale: 0 for no mixed precision; -1 for a dynamic scale; or the scale.
        rates: Blocks that learn at half of the rate.
        compression: 'prune', 'channels', 'quantize' or ''.
    """

    rule: str = "SGD"
    hooks: tuple[str, ...] = ()
    loss_scale: float = 0
    rates: tuple[int, ...] = ()
    compression: str = ""


@dataclass(frozen=True)
class Event:
    """An event before a minibatch.

    Attributes:
        before: Number of the minibatch.
        name: See :mod:`tests.composition.life`.
        cuts: New cuts, of a move of layers.
        way: The way in which a resumed run goes on.
    """

    before: int
    name: str
    cuts: tuple[int, ...] = ()
    way: Way | None = None


@dataclass(frozen=True)
class Life:
    """The minibatches of a run, and the events between them.

    Attributes:
        sizes: Number of samples of each minibatch.
        lengths: Number of words of the samples of each minibatch, for 'words'.
        events: Events between the minibatches, in order.
        accumulates: Numbers of minibatches whose gradients are added to those of the
            one before, which is not followed by an update.
    """

    sizes: tuple[int, ...] = (6,)
    lengths: tuple[int, ...] = ()
    events: tuple[Event, ...] = ()
    accumulates: tuple[int, ...] = ()


@dataclass(frozen=True)
class Case:
    """A model, a way to run it, how it learns, and a life.

    Attributes:
        seed: Seed of initial weights, samples and random layers.
    """

    seed: int = 0
    model: Model = field(default_factory=Model)
    way: Way = field(default_factory=Way)
    update: Update = field(default_factory=Update)
    life: Life = field(default_factory=Life)

    def __str__(self) -> str:
        """Returns one line, without what a case has by default."""
        return _text(self)

    @property
    def ways(self) -> tuple[Way, ...]:
        """All ways in which the case runs, one after the other."""
        others = [event.way for event in self.life.events if event.way is not None]
        return (self.way, *others)


_CLASSES = {each.__name__: each for each in (Case, Model, Way, Update, Event, Life)}


def parse(line: str) -> Case:
    """Returns the case of a line."""
    return _value(ast.parse(line.strip(), mode="eval").body)


def _text(value: object) -> str:
    if not dataclasses.is_dataclass(value):
        if isinstance(value, tuple):
            inner = ", ".join(map(_text, value)) + "," * (len(value) == 1)
            return f"({inner})"
        return repr(value)
    plain = type(value)(**_needed(value))
    words = [
        f"{each.name}={_text(getattr(value, each.name))}"
        for each in dataclasses.fields(value)
        if getattr(value, each.name) != getattr(plain, each.name)
        or each.name in _needed(value)
    ]
    return f"{type(value).__name__}({', '.join(words)})"


def _needed(value: object) -> dict[str, object]:
    return {
        each.name: getattr(value, each.name)
        for each in dataclasses.fields(value)
        if each.default is dataclasses.MISSING
        and each.default_factory is dataclasses.MISSING
    }


def _value(node: ast.expr) -> object:
    if isinstance(node, ast.Call):
        names = {each.arg: _value(each.value) for each in node.keywords}
        return _CLASSES[node.func.id](**names)
    if isinstance(node, ast.Tuple):
        return tuple(map(_value, node.elts))
    return ast.literal_eval(node)
