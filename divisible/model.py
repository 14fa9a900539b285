"""The model as a list of layers that can be cut anywhere."""

from __future__ import annotations

import copy
import operator
from collections.abc import Container

import chainer
from chainer import Link

from divisible import ties
from divisible.carried_state import carrying
from divisible.deferred.postponed import follow
from divisible.early_draws import EarlyDraws
from divisible.fusible import Fusible
from divisible.skips import Skip, find_skips, last_users
from divisible.ties import SharedState, Tie
from divisible.undivided import Undivided


class Divisible(Fusible):
    """A list of layers that can be cut into pipeline stages.

    Subclass it and ``append`` the layers in ``__init__``, as in Fig. 3 of
    Takisawa et al. Any link, function or lambda is a layer. The undivided model
    is an ordinary Chainer model. :meth:`divide` returns the layers of one stage.

    Unlike in :class:`chainer.Sequential`, a layer is known by its *position in
    the undivided model*, functions counted, wherever it is::

        position          0           1      2           3      4
        model             Linear      relu   Linear      relu   Linear
                          '/0/W'             '/2/W'             '/4/W'
        divide(2, None)                      Linear      relu   Linear
                                             '/2/W'             '/4/W'

    So parameter paths, snapshots and error messages mean the same on any number
    of stages. A link that appears at several positions is one layer with one set
    of parameters. Its paths have the first of its positions.

    A layer with several inputs gets them from a layer that returns a tuple, or
    from an earlier layer by :func:`~divisible.stash` and :func:`~divisible.pop`.
    Layers share parameters by :meth:`tie`, or by having the same ``Parameter``.

    Args:
        layers: The first layers, as for :class:`chainer.Sequential`. Calling
            ``super().__init__()`` in a subclass is optional.

    Attributes:
        layer_range (tuple): ``(start, end)``, the positions of these layers in the
            undivided model, half-open.
        model_layers (tuple): One line of text per layer of the undivided model.
            Ranks that built different models have different texts.

    Example:
        >>> import chainer.functions as F
        >>> import chainer.links as L
        >>> class MLP(Divisible):
        ...     def __init__(self, n_units):
        ...         self.append(L.Linear(784, n_units))
        ...         self.append(F.relu)
        ...         self.append(L.Linear(n_units, 10))
        >>> stage = MLP(100).divide(1, 3)
        >>> stage.layer_range
        (1, 3)
        >>> sorted(path for path, _ in stage.namedparams())
        ['/2/W', '/2/b']
    """

    # Data of the undivided model, on a stage or a view.
    _undivided: Undivided | None = None
    #: Weights that `from_chain` drew earlier than a serial script does.
    early_draws: EarlyDraws | None = None

    @property
    def model_layers(self) -> tuple[str, ...]:
        """A line of text for each layer of the undivided model."""
        return tuple(self._texts) if self._undivided is None else self._undivided.layers

    @property
    def skips(self) -> tuple[Skip, ...]:
        """The skip connections of the undivided model.

        Raises:
            ValueError: If their ends do not match.
        """
        if self._undivided is None:
            return find_skips(self._layers)
        return self._undivided.skips

    def _last_users(self) -> Container[int]:
        return last_users(self.skips)

    @property
    def ties(self) -> tuple[Tie, ...]:
        """The parameters that layers at several positions of the whole model use."""
        if self._undivided is None:
            return ties.find_ties(self._layers, self._first_positions())
        return self._undivided.ties

    @property
    def shared_states(self) -> tuple[SharedState, ...]:
        """The links in several layers of the whole model that have running averages."""
        if self._undivided is None:
            return ties.find_shared_states(self._layers, self._first_positions())
        return self._undivided.shared_states

    @property
    def carried_states(self) -> tuple[str, ...]:
        """Paths of the links in the whole model that carry a state."""
        if self._undivided is None:
            return tuple(path for path, _ in carrying(self._layers))
        return self._undivided.carried_states

    @property
    def recomputed(self) -> tuple[bool, ...]:
        """For each layer, whether it was appended with ``recompute=True``."""
        return tuple(self._recomputed)

    def path_elsewhere(self, param: chainer.Parameter) -> str | None:
        """Returns the path of a parameter if it belongs to another stage."""
        is_whole = self._undivided is None
        return None if is_whole else self._undivided.elsewhere.path_of(param)

    @property
    def is_stage(self) -> bool:
        """Whether this is the result of :meth:`divide`."""
        return self._undivided is not None

    def divide(
        self, start: int | None = None, end: int | None = None, *, mode: str = "share"
    ) -> Divisible:
        """Returns the stage of the layers ``start`` to ``end``.

        The stage holds the very same links as this model: nothing is copied and
        nothing renamed. When the model is dropped, the layers of other stages are
        freed. Layers in a list or other container that is an attribute of the model are
        not freed. Attributes that are links are left out of the stage. Only parameters
        that the stage shares with layers before it are copied, with their links.

        If the model was built in :func:`deferred_init`, the parameters of these layers
        are made, and no others; ``divide()`` makes the whole model. In other models, a
        layer may get its sizes in its first call. Its weights then depend on the seed
        of the pipeline.

        Args:
            start (int or None): The position of the first layer in the undivided
                model; ``None`` for the first one of this model.
            end (int or None): The position after the last layer; ``None`` for the end.
            mode (str): ``'copy'`` copies the layers, and makes the copies. The model
                stays unchanged, and the made arrays are freed with the stage.

        Returns:
            Divisible: The stage, of the same class as this model. Its list cannot
            be changed. A stage can be divided again, by the same positions.

        Raises:
            IndexError: If the range is empty, reversed or not within this model.
            TypeError: If this class has its own ``forward`` or parameters, which belong
                to no layer and so to no stage.
            ValueError: If the ends of skip connections do not match, or ``mode``
                is neither ``'share'`` nor ``'copy'``.
            RuntimeError: If a layer was deferred, and its initializer fails.

        Example:
            >>> import chainer.functions as F
            >>> model = Divisible(F.relu, F.tanh, F.sigmoid)
            >>> len(model.divide(None, 1)), len(model.divide(1, None))
            (1, 2)
        """
        first, last = self.layer_range
        start = first if start is None else operator.index(start)
        end = last if end is None else operator.index(end)
        self._check_divisible(start, end)
        if mode not in ("share", "copy"):
            raise ValueError(f"mode must be 'share' or 'copy', not {mode!r}")
        self._deferred.assign_places(dict(zip(self._first_positions(), self._layers)))
        stage = self.view(start, end)
        stage._take_own_copies()
        # An attribute beside the list, such as ``self.head = L.Linear(...)``, would
        # keep a layer of another stage alive.
        own = set(map(id, stage._layers))
        for name, value in list(vars(stage).items()):
            if isinstance(value, Link) and id(value) not in own:
                del vars(stage)[name]
        params = dict(self.namedparams())
        stage._undivided = stage._undivided.seen_from(stage, params)
        if mode == "copy":
            stage = copy.deepcopy(stage)
        stage._deferred = stage._deferred.make(
            dict(enumerate(zip(stage._first_positions(), stage._layers), start))
        )
        return stage

    def view(self, start: int, end: int) -> Divisible:
        """Returns some of the layers, which still share parameters with other layers.

        A pipeline recomputes views of its stages. Unlike a stage, a view has no copies
        of shared parameters, and cannot be trained alone.

        Args:
            start (int): The position of the first layer in the undivided model.
            end (int): The position after the last one.

        Raises:
            ValueError: If the ends of skip connections do not match.
        """
        try:
            undivided = self._as_undivided()
        except ValueError as error:
            raise ValueError(f"the layers {start} to {end - 1}: {error}") from error
        part = self._part(start, end)
        part._undivided = undivided
        before = undivided.ties_before(start, end)
        params = dict(self.namedparams())
        part._tied_paths = ties.tied_paths(before, params, part._positions)
        return part

    def _as_undivided(self) -> Undivided:
        """Returns the data of the undivided model that a part of it needs."""
        if self._undivided is not None:
            return self._undivided
        states = self.shared_states, self.carried_states
        return Undivided(self.model_layers, self.skips, self.ties, *states)

    def _take_own_copies(self) -> None:
        """Copies the parameters that layers before this stage use as well."""
        params = dict(self.namedparams())
        before = self._undivided.ties_before(*self.layer_range)
        layers = ties.with_own_copies(
            self._layers, [params[tie.path] for tie in before]
        )
        for layer, own in zip(self._layers, layers):
            follow(layer, own)
        self._replace_layers(layers)

    def tie(self, first: str, second: str, transpose: bool = False) -> None:
        """Makes two parameters one.

        From now on, the later layer uses the earlier one's parameter, and has no own
        one. If the layers are in different stages, a pipeline adds up their gradients
        after each minibatch. So both stages' copies stay equal bit for bit. This needs
        equal optimizers that treat each parameter separately, as all of Chainer's do.
        Freeze all copies or none (``disable_update``). The pipeline refuses copies that
        are treated differently.

        Tie last: after a transposed tie the list cannot be changed. The later layer has
        the transpose in calls and in files, and otherwise the parameter itself.

        Args:
            first (str): The path of one parameter, such as ``'/0/W'``.
            second (str): The path of the other parameter.
            transpose (bool): Whether the two are transposes of each other.

        Raises:
            TypeError: If this is a stage. Tie first, then divide.
            ValueError: If there is no such parameter, or the shapes do not fit, or a
                module of PyTorch would get the transpose.

        Example:
            >>> import chainer.links as L
            >>> autoencoder = Divisible(L.Linear(9, 2), L.Linear(2, 9))
            >>> autoencoder.tie('/0/W', '/1/W', transpose=True)
            >>> sorted(path for path, _ in autoencoder.namedparams())
            ['/0/W', '/0/b', '/1/b']
        """
        if self.is_stage:
            raise TypeError("tie the layers of the model, then divide it")
        params = dict(self.namedparams())
        ties.check_tie(params, first, second, transpose)
        first, second = sorted((first, second), key=list(params).index)
        kept, dropped = params[first], params[second]
        if transpose:
            ties.check_transposable(self.links(), dropped, second)
        replaced = {
            position: ties.replace_parameter(link, dropped, kept)
            for link, position in self._positions.items()
        }
        if transpose:
            self._transposes = self._transposes.toggled(replaced)

    def _check_divisible(self, start: int, end: int) -> None:
        what = f"divide({start}, {end}) of {type(self).__name__}"
        first, last = self.layer_range
        if not first <= start <= last or not first <= end <= last:
            raise IndexError(
                f"{what}: out of range. The positions go from {first} to {last}, and"
                f" a stage of layers a to b-1 is divide(a, b)."
            )
        if start >= end:
            raise IndexError(
                f"{what}: no layers. A stage needs at least one; with {last - first}"
                f" layers there can be at most {last - first} stages."
            )
        try:
            self.check_cuttable()
        except TypeError as error:
            raise TypeError(f"{what}: {error}") from None

    def check_cuttable(self) -> None:
        """Checks that this model consists of its layers only.

        Raises:
            TypeError: If this class has its own ``forward`` or parameters.
        """
        if self._params:
            raise TypeError(
                f"the parameters {sorted(self._params)} belong to the model"
                f" and to none of its layers. Put them into a layer."
            )
        if type(self).forward is not Divisible.forward:
            raise TypeError(
                f"{type(self).__name__}.forward replaces the pass through the"
                f" layers, which stages cannot replace. Put what it does into"
                f" layers."
            )

    def __add__(self, other: chainer.Sequential) -> Divisible:
        if not isinstance(other, chainer.Sequential):
            return NotImplemented
        self._check_positions_free()
        both = Divisible()
        both.extend(self)
        both.extend(other)
        return both

    def flatten(self) -> Divisible:
        """Returns a model with the layers of nested ``Sequential`` in their place.

        If a nested model is recomputed, all its layers are. Otherwise its own marks
        count.
        """
        self._check_positions_free()
        flat = Divisible()
        for layer, mark in zip(self._layers, self._recomputed):
            nested = isinstance(layer, chainer.Sequential)
            inner = layer.flatten() if nested else [layer]
            marks = getattr(inner, "_recomputed", [False] * len(inner))
            for each, its_mark in zip(inner, marks):
                flat.append(each, recompute=mark or its_mark)
        return flat

    def _check_mutable(self) -> None:
        if self.is_stage:
            raise TypeError(
                f"the layers {self.layer_range} of a divided {type(self).__name__}"
                f" cannot be changed; change the model, then divide it"
            )
        self._check_positions_free()
