"""Layers that go on from where another microbatch ended."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from divisible import Divisible
from divisible.communication.signatures import Tensor
from pipeline import ActionError, Pipeline
from pipeline.stages.stage import Stage

X = np.random.RandomState(0).normal(size=(6, 4)).astype(np.float32)
T = np.array([0, 1, 2, 0, 1, 2], np.int32)


class Cell(chainer.Chain):
    """A stateful link that nobody resets, unless asked to."""

    def __init__(self, rnn, before=None, after=None):
        super().__init__(rnn=rnn)
        self.before, self.after = before, after

    def forward(self, x):
        if self.before:
            self.before(self.rnn)
        y = self.rnn(x)
        if self.after:
            self.after(self.rnn)
        return y


class Keeper(chainer.Chain):
    """Adds what it kept of the call before, if there is something."""

    def __init__(self, get, put, detach=False):
        super().__init__(linear=L.Linear(4, 4))
        self.h, self.box, self.several = None, {}, []
        self.state = State()
        self.get, self.put, self.detach = get, put, detach

    def forward(self, x):
        y = self.linear(x)
        h = self.get(self)
        y = y if h is None else y + h
        self.put(self, y.array if self.detach else y)
        return y


class State:
    """What a link may keep its state in."""

    h = None


class Callable:
    """A layer that is no link."""

    h = None

    def __call__(self, x):
        y = x if self.h is None else F.tanh(x) + self.h
        self.h = F.tanh(y)
        return y


def in_attribute(**options):
    return Keeper(lambda it: it.h, lambda it, y: setattr(it, "h", y), **options)


def in_dictionary():
    return Keeper(lambda it: it.box.get("h"), lambda it, y: it.box.update(h=y))


def in_list():
    def put(it, y):
        it.several = [y]

    return Keeper(lambda it: it.several[0] if it.several else None, put)


def in_growing_list():
    def get(it):
        return F.sum(F.stack(it.several), axis=0) if it.several else None

    return Keeper(get, lambda it, y: it.several.append(y))


def in_tuple():
    return Keeper(
        lambda it: None if it.h is None else it.h[1],
        lambda it, y: setattr(it, "h", (2, y)),
    )


def in_object():
    return Keeper(lambda it: it.state.h, lambda it, y: setattr(it.state, "h", y))


def as_a_view():
    return Keeper(
        lambda it: None if it.h is None else it.h.array[:2],
        lambda it, y: setattr(it, "h", y),
    )


def in_closure():
    rnn = L.LSTM(4, 4)
    return lambda x: rnn(x)


STATEFUL = {
    "LSTM": (lambda: Cell(L.LSTM(4, 4)), "/1/rnn.[ch]"),
    "GRU": (lambda: Cell(L.StatefulGRU(4, 4)), "/1/rnn.h"),
    "MGU": (lambda: Cell(L.StatefulMGU(4, 4)), "/1/rnn.h"),
    "peephole": (lambda: Cell(L.StatefulPeepholeLSTM(4, 4)), "/1/rnn.[ch]"),
    "zoneout": (lambda: Cell(L.StatefulZoneoutLSTM(4, 4)), "/1/rnn.[ch]"),
    "nested": (
        lambda: Divisible(F.relu, chainer.ChainList(Cell(L.LSTM(4, 4)))[0]),
        "/1/1/rnn.[ch]",
    ),
    "attribute": (in_attribute, "/1.h"),
    "array": (lambda: in_attribute(detach=True), "/1.h"),
    "dictionary": (in_dictionary, "/1.box"),
    "list": (in_list, "/1.several"),
    "growing list": (in_growing_list, "/1.several"),
    "tuple": (in_tuple, "/1.h"),
    "object": (in_object, "/1.state"),
    "view": (as_a_view, "/1.h"),
    "no link": (Callable, "/1.h"),
    "closure": (in_closure, "/1/LSTM.[ch]"),
}


def make_pipeline(layer, n_microbatches=3, **options):
    stage = Divisible(L.Linear(4, 4), layer, L.Linear(4, 3)).divide()
    return Pipeline(stage, MPI.COMM_SELF, n_microbatches=n_microbatches, **options)


@pytest.mark.parametrize("name", STATEFUL)
def test_a_microbatch_that_begins_from_another_ones_state_is_refused(name):
    make, where = STATEFUL[name]
    message = f"microbatch 1.*in layer 1, .*another microbatch left in {where}:"
    for call in ("step", "evaluate", "predict"):
        run = getattr(make_pipeline(make()), call)
        with pytest.raises(RuntimeError, match=message):
            run(X) if call == "predict" else run(X, T)


def test_microbatches_of_other_sizes_are_refused_by_the_same_words():
    # 2, 2, 1 and 1 samples, which do not fit to each other.
    layer = Keeper(lambda it: it.h, lambda it, y: it.calls.append(y) or it.keep(y))
    layer.calls = []
    layer.keep = lambda y: setattr(layer, "h", y) if len(layer.calls) > 1 else None
    with pytest.raises(RuntimeError, match="microbatch 2.*another microbatch left in"):
        make_pipeline(layer, 4).step(X, T)


def test_a_loss_that_keeps_a_state_is_refused():
    lossfun = Cell(L.LSTM(3, 3))
    pipe = make_pipeline(F.tanh, lossfun=lambda y, t: F.mean(lossfun(y)), accfun=None)
    with pytest.raises(RuntimeError, match=r"in lossfun.*left in /loss/LSTM\.[ch]:"):
        pipe.step(X, T)


def test_a_recomputed_forward_does_not_begin_from_the_first_ones_state():
    model = Divisible()
    for layer in (L.Linear(4, 4), Cell(L.LSTM(4, 4)), L.Linear(4, 3)):
        model.append(layer, recompute=isinstance(layer, Cell))
    pipe = Pipeline(model.divide(), MPI.COMM_SELF, n_microbatches=1)
    with pytest.raises(
        RuntimeError, match="in layer 1, Cell: .*runs its forward again"
    ):
        pipe.step(X, T)


def reset(rnn):
    rnn.reset_state()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_layers_that_reset_themselves_train_as_in_serial(when, recompute):
    layer = Cell(L.LSTM(4, 4), **{when: reset})
    pipe = make_pipeline(layer, recompute=recompute)
    (model,) = pipe.stages.values()
    for _ in range(2):
        expected = float(F.softmax_cross_entropy(model(X), T).array)
        assert pipe.step(X, T)["loss"] == pytest.approx(expected, rel=1e-5)
        assert pipe.evaluate(X, T)["loss"] == pytest.approx(expected, rel=1e-5)


def unchain(rnn):
    rnn.h.unchain_backward()
    rnn.c.unchain_backward()


def test_whole_minibatches_may_go_on_from_each_other_without_their_graphs():
    def losses(step):
        np.random.seed(0)
        model = Divisible(
            L.Linear(4, 4), Cell(L.LSTM(4, 4), after=unchain), L.Linear(4, 3)
        )
        optimizer = chainer.optimizers.SGD(0.5).setup(model)
        step = step(model)
        for _ in range(4):
            model.cleargrads()
            yield step()
            optimizer.update()

    def serial(model):
        def step():
            loss = F.softmax_cross_entropy(model(X), T)
            loss.backward()
            return float(loss.array)

        return step

    def pipelined(model):
        pipe = Pipeline(model, MPI.COMM_SELF, n_microbatches=1)
        return lambda: pipe.step(X, T)["loss"]

    assert list(losses(pipelined)) == pytest.approx(list(losses(serial)), rel=1e-5)


def test_whole_minibatches_may_not_go_on_from_each_others_graphs():
    pipe = make_pipeline(Cell(L.LSTM(4, 4)), 1)
    pipe.step(X, T)
    # It needs no gradients.
    pipe.evaluate(X, T)
    pipe.step(X, T)
    with pytest.raises(RuntimeError, match=r"in layer 1, Cell.*unchain_backward\(\)"):
        pipe.step(X, T)


class Blameless(chainer.Chain):
    """Keeps much, but no state."""

    def __init__(self):
        super().__init__(linear=L.Linear(4, 4), norm=L.BatchNormalization(4))
        self.scale = chainer.Variable(np.float32([1, 2, 3, 4]))
        self.cached = self.output = None
        self.average = np.zeros((2, 4), np.float32)
        self.log, self.counts = [], {}

    def forward(self, x):
        y = self.norm(self.linear(x)) * self.scale
        if self.cached is None:
            # Depends on no sample.
            self.cached = F.tanh(self.scale)
        y = y * self.cached + self.average.mean(axis=0)
        self.average = 0.9 * self.average + 0.1 * y.array.mean(axis=0, keepdims=True)
        self.output = F.tanh(y)
        self.log.append(y)
        self.counts["calls"] = self.counts.get("calls", 0) + 1
        chainer.report({"mean": F.mean(self.output)}, self)
        return self.output


def test_constants_outputs_logs_and_averages_are_no_states():
    classifier = L.Classifier(F.identity)
    pipe = make_pipeline(Blameless(), lossfun=classifier, accfun=None)
    for _ in range(3):
        # An error would be raised here.
        assert np.isfinite(pipe.step(X, T)["loss"])
        assert np.isfinite(pipe.evaluate(X, T)["loss"])
        assert len(pipe.predict(X)) == len(X)


class Late(chainer.Chain):
    """Calls a stateful link once it is switched on."""

    def __init__(self):
        super().__init__(lstm=L.LSTM(4, 4))
        self.is_on = False

    def forward(self, x):
        return self.lstm(x) if self.is_on else x


@pytest.mark.parametrize("call", ["step", "evaluate"])
def test_a_layer_that_begins_late_to_keep_a_state_is_refused_at_once(call):
    late = Late()
    model = Divisible(late, L.Linear(4, 3))
    pipe = Pipeline(model, MPI.COMM_SELF, n_microbatches=2)
    for _ in range(5):
        pipe.step(X, T)
        pipe.evaluate(X, T)
    late.is_on = True
    with pytest.raises(ActionError, match="microbatch 1.*/0/lstm"):
        getattr(pipe, call)(X, T)


def test_minibatches_without_samples_hide_no_state():
    stage = Stage(Divisible(L.LSTM(4, 4)))
    for step in range(5):
        stage.begin(step)
        stage.forward(0, (), {})
    stage.begin(5)
    stage.forward(0, (Tensor(X[:3]),), {})
    with pytest.raises(TypeError, match="begins from the state"):
        stage.forward(1, (Tensor(X[3:]),), {})
