"""The undivided model in stock Chainer, one process, in double precision.

A model in which some layer sees microbatches is called with each of them, as the
documentation says a serial script has to. Every other model sees whole minibatches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import chainer
import numpy as np
from chainer.optimizer_hooks.gradient_noise import exponential_decay_noise

from divisible import RandomKey, keyed_random_state
from divisible.carried_state import carrying, declared
from divisible.minibatch import split, split_unequally
from divisible.planning.shares import integer_shares
from divisible.random_streams import named_stream
from tests.composition import models
from tests.composition.cases import Case, Event, Way
from tests.composition.losses import LOSSES
from tests.composition.observing import (
    LARGEST_NUMBERS,
    Largest,
    Normalized,
    Reported,
)
from tests.composition.record import Record
from tests.composition.updating import (
    add_hooks,
    compression_of,
    optimizer_of,
    set_rates,
)


class Serial:
    """A serial script of a case.

    Args:
        case: The case.
        skipped: Numbers of minibatches whose update a loss scale has skipped.
        perturbed_by: Relative size of random changes of the initial weights.
    """

    def __init__(
        self, case: Case, skipped: Sequence[int] = (), perturbed_by: float = 0
    ) -> None:
        self.case, self.way, self._skipped = case, case.way, frozenset(skipped)
        model = models.build(case, is_resident=True)
        if case.model.is_deferred:
            model.divide()
        self.model = model
        self._widen(perturbed_by)
        self.optimizer = optimizer_of(case).setup(self.model)
        add_hooks(case, self.optimizer, self._noise)
        set_rates(case, self.model)
        self._compress = compression_of(case, self.optimizer)
        self._measure = LOSSES[case.model.loss]
        self._normalized = Normalized()
        self._states = [
            (link, name) for _, link in carrying(self.model) for name in declared(link)
        ]
        self._trained: dict[int, Any] = {}
        self._evaluated: dict[int, Any] = {}
        self._is_cut = models.sees_microbatches(case.model)
        self._cuts = self.way.cuts
        self._n_steps = 0
        # Gradients of the minibatch before, where updates apply them late.
        self._late: dict[str, Any] | None = None

    def _noise(self, xp: Any, shape: Any, dtype: Any, hook: Any, rule: Any) -> Any:
        """Returns noise that depends on the minibatch and the parameter."""
        params = self.model.namedparams()
        path = next(path for path, param in params if param.update_rule is rule)
        key = RandomKey(self.case.seed % 2**31, self._n_begun)
        with named_stream(key, path):
            return exponential_decay_noise(xp, shape, dtype, hook, rule)

    def _widen(self, perturbed_by: float) -> None:
        random = np.random.RandomState(0)
        for _, param in sorted(self.model.namedparams()):
            array = param.array
            if self.case.model.dtype == "float16" and not _is_normalization(
                self.model, param
            ):
                array = array.astype(np.float16)
            array = array.astype(np.float64)
            if perturbed_by:
                # Zeros change as well: hooks may depend on the sign of a weight.
                scale = np.where(array == 0, 1, np.abs(array))
                array += perturbed_by * scale * random.normal(size=array.shape)
            param.cleargrad()
            param.array = array
        for link in self.model.links():
            for name in link._persistent:
                value = getattr(link, name)
                if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                    setattr(link, name, value.astype(np.float64))

    def live(self) -> Record:
        """Returns what comes of the whole life."""
        record = Record()
        events = list(self.case.life.events)
        for number in range(len(self.case.life.sizes)):
            while events and events[0].before == number:
                with self._watched(record):
                    self._happen(events.pop(0), number, record)
            with self._watched(record):
                self._train(number, record)
        for event in events:
            with self._watched(record):
                self._happen(event, len(self.case.life.sizes) - 1, record)
        record.keep_state(self._state())
        return record

    @contextmanager
    def _watched(self, record: Record) -> Iterator[None]:
        """Notes in the record what numbers appear, and whether the dtype has them."""
        with Reported() as reported:
            limit = LARGEST_NUMBERS.get(self.case.model.dtype)
            first = len(record.entries)
            with nullcontext() if limit is None else Largest() as numbers:
                yield
        record.reported = max(record.reported, reported.largest)
        if limit is None:
            return
        # The ranks' numbers have rounding errors.
        if numbers.largest > limit / 2:
            record.diverges_at = min(record.diverges_at, first)

    def _state(self) -> dict[str, Any]:
        found = {}
        for path, param in self.model.namedparams():
            found[f"parameter {path}"] = param.array
            state = {} if self.case.update.loss_scale else param.update_rule.state
            for name, value in (state or {}).items():
                found[f"{name} of {path}"] = value
        for path, link in self.model.namedlinks():
            for name in ("avg_mean", "avg_var"):
                if hasattr(link, name):
                    found[f"{name} of {path}"] = getattr(link, name)
        for path, link in carrying(self.model) if self.way.n_replicas == 1 else ():
            for name in declared(link):
                rows = self._trained.get(self._states.index((link, name)))
                found[f"state {name} of {path}"] = rows
        return {key: value for key, value in found.items() if value is not None}

    def _happen(self, event: Event, number: int, record: Record) -> None:
        x, t = self._minibatch(number)
        if event.way is not None:
            self._flush()
            if not (self.way.is_double_buffered and event.way.is_double_buffered):
                self._late = None
            self.way, self._evaluated = event.way, {}
            self._cuts = event.way.cuts
        if event.name == "evaluate":
            means, _ = self._pass(x, t, False)
            record.add("evaluate", means)
        elif event.name == "predict":
            _, outputs = self._pass(x, None, False, split_unequally)
            record.add("predict", self._of_replicas(outputs))
        elif event.name == "move":
            self._flush()
            if event.cuts != self._cuts:
                # No state of an evaluation moves.
                self._cuts, self._evaluated = event.cuts, {}
        elif event.name == "shrink":
            self._compress.shrink()
        elif event.name == "reset":
            self._trained, self._evaluated = {}, {}

    def _of_replicas(self, outputs: Sequence[Any]) -> dict[str, Any]:
        """Returns the outputs of each replica."""
        found = {}
        stops = np.cumsum(self._sizes(len(outputs[0])))[:-1]
        for i, y in enumerate(outputs):
            for replica, part in enumerate(np.split(y, stops)):
                found[f"{i} of {replica}"] = part
        return found

    def _sizes(self, n: int) -> list[int]:
        """Returns the number of samples of each replica."""
        n_replicas = self.way.n_replicas
        shares = self.way.shares or [1] * n_replicas
        return integer_shares(shares, n, int(n >= n_replicas))

    def _minibatch(self, number: int) -> tuple[Any, Any]:
        return tuple(map(models.wide, models.minibatch(self.case, number)))

    def _train(self, number: int, record: Record) -> None:
        if number not in self.case.life.accumulates:
            self.model.cleargrads()
        averages = self._normalized.begin(self.model)
        with self._normalized:
            means, _ = self._pass(*self._minibatch(number), True)
        if dict(self.way.options).get("deferred_batch_norm", True):
            self._normalized.finish(averages)
        self._evaluated = {}
        is_part = number + 1 in self.case.life.accumulates
        self._n_begun = self._n_steps
        is_whole = not is_part and self._takes_gradients()
        # Hooks clip gradients that were rounded before.
        record.rounded = max(record.rounded, self._largest_gradient())
        if is_whole and number not in self._skipped:
            self.optimizer.update()
        record.hooked = max(record.hooked, self._largest_gradient())
        if self._compress is not None and not is_part:
            self._compress.advance(number + 1, (number + 1) / 10)
        self._n_steps += 1
        record.add("step", means)
        record.add(
            "gradients",
            {
                path: param.grad
                for path, param in self.model.namedparams()
                if param.grad is not None
            },
        )

    def _largest_gradient(self) -> float:
        found = (param.grad for param in self.model.params())
        return max(float(np.abs(g).max(initial=0)) for g in found if g is not None)

    def _takes_gradients(self) -> bool:
        """Returns whether there are gradients to apply: perhaps those before."""
        if not self.way.is_late:
            return True
        named = list(self.model.namedparams())
        late, self._late = self._late, {path: param.grad for path, param in named}
        if late is not None:
            for path, param in named:
                param.grad = late[path]
        return late is not None

    def _flush(self) -> None:
        """Applies the gradients of the last minibatch before a change of stages."""
        late, self._late = self._late, None if self.way.has_two_versions else self._late
        if self.way.has_two_versions and late is not None:
            for path, param in self.model.namedparams():
                param.grad = late[path]
            self.optimizer.update()

    def _pass(
        self, x: Any, t: Any, trains: bool, cut: Callable[..., Any] = split
    ) -> tuple[dict[str, float], Any]:
        """Runs a forward, and a backward in training; returns means and outputs."""
        before = self._trained if trains else self._evaluated
        after: dict[int, list[Any]] = {}
        parts = list(self._parts(x, t, cut))
        total = sum(self._count(t_part, x_part) for _, x_part, t_part in parts)
        sums: dict[str, float] = {}
        weights: dict[str, float] = {}
        last: dict[str, float] = {}
        outputs = []
        start = 0

        def add(name: str, value: Any, weight: float) -> None:
            value = last[name] = float(chainer.as_array(value))
            if weight:
                sums[name] = sums.get(name, 0.0) + value * weight
                weights[name] = weights.get(name, 0.0) + weight

        for microbatch, x_part, t_part in parts:
            n = len(x_part[0])
            self._put(before, start, start + n)
            reporter = chainer.Reporter()
            reporter.add_observers("", self.model.namedlinks(skipself=True))
            key = RandomKey(self.case.seed % 2**31, self._n_steps, microbatch, trains)
            with (
                chainer.using_config("train", trains),
                chainer.using_config("enable_backprop", trains),
                keyed_random_state(key),
                reporter.scope({}),
            ):
                ys = self.model(*x_part)
                reports = dict(reporter.observation)
            ys = ys if isinstance(ys, tuple) else (ys,)
            outputs.append([chainer.as_array(y) for y in ys])
            for name, value in reports.items():
                add(name, value, n)
            self._collect(after)
            start += n
            if t_part is None and self._measure.has_targets:
                continue
            targets = (t_part,) if self._measure.has_targets else ()
            loss = self._measure.lossfun(*ys, *targets)
            loss = loss[0] if isinstance(loss, tuple) else loss
            count = self._count(t_part, x_part)
            add("loss", loss, count)
            if self._measure.accfun is not None:
                add("accuracy", self._measure.accfun(*ys, *targets), n)
            if trains:
                loss.grad = np.full_like(loss.array, count / max(total, 1))
                loss.backward()
        self._keep(before, after, start, trains)
        joined = [np.concatenate(each) for each in zip(*outputs)]
        means = {
            name: sums[name] / weights[name] if weights.get(name) else last[name]
            for name in last
        }
        return means, joined

    def _count(self, t: Any, x: Any) -> int:
        if not self._measure.has_targets:
            return len(x[0])
        return 0 if t is None else self._measure.n_counted(t)

    def _parts(
        self, x: Any, t: Any, cut: Callable[..., Any]
    ) -> Iterator[tuple[int, Any, Any]]:
        """Yields the number of a microbatch among all, its inputs and its targets."""
        xs = x if isinstance(x, tuple) else (x,)
        if not self._is_cut:
            yield 0, xs, t
            return
        way: Way = self.way
        arrays = xs if t is None else (*xs, t)
        start = 0
        for replica, size in enumerate(self._sizes(len(xs[0]))):
            mine = [array[start : start + size] for array in arrays]
            start += size
            for i, part in enumerate(cut(mine, way.n_microbatches)):
                if len(part[0]):
                    number = replica * way.n_microbatches + i
                    yield number, part[: len(xs)], None if t is None else part[-1]

    def _put(self, before: dict[int, Any], start: int, stop: int) -> None:
        for i, (link, name) in enumerate(self._states):
            rows = before.get(i)
            value = None if rows is None else chainer.Variable(rows[start:stop])
            setattr(link, name, value)

    def _collect(self, after: dict[int, list[Any]]) -> None:
        for i, (link, name) in enumerate(self._states):
            after.setdefault(i, []).append(chainer.as_array(getattr(link, name)))

    def _keep(
        self, before: dict[int, Any], after: dict[int, list[Any]], n: int, trains: bool
    ) -> None:
        """Keeps the states that a minibatch has left; other samples keep theirs."""
        found = {}
        for i, rows in after.items():
            rest = [before[i][n:]] if before.get(i) is not None else []
            found[i] = np.concatenate([*rows, *rest])
        if trains:
            self._trained = found
        else:
            self._evaluated = found


def _is_normalization(model: Any, param: chainer.Parameter) -> bool:
    for link in model.links():
        if any(vars(link).get(name) is param for name in ("gamma", "beta")):
            return True
    return False
