"""Neighbouring modules as one function: the same bits, and less of Chainer."""

import chainer
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mpi4py import MPI  # noqa: E402
from torch import nn  # noqa: E402

from chainer_kernels.catalogue import backward_of  # noqa: E402
from divisible import Divisible, RandomKey, keyed_random_state, pop, stash  # noqa: E402
from divisible.backward.completion import Completion  # noqa: E402
from divisible.backward.graph_functions import (  # noqa: E402
    arrays_of,
    functions_behind,
)
from divisible.backward.graph_walk import GraphWalk  # noqa: E402
from divisible.backward.weight_gradients import WeightGradients  # noqa: E402
from divisible.layer_pass import timed_layers  # noqa: E402
from pipeline import Pipeline  # noqa: E402
from pipeline.stages.batch_statistics import BatchStatistics  # noqa: E402
from torch_layers import TorchLayer  # noqa: E402
from torch_layers.chained import ChainedFunction  # noqa: E402

X = np.random.default_rng(0).normal(size=(5, 2, 6)).astype(np.float32)


def layers():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(4)
    linear = nn.Linear(24, 24)
    frozen = nn.Linear(24, 24)
    frozen.weight.requires_grad_(False)
    modules = [
        nn.Conv1d(2, 4, 3, padding=1), norm, nn.ReLU(), nn.Dropout(0.4), norm,
        nn.Flatten(), linear, nn.LayerNorm(24), linear, frozen, nn.Identity(),
    ]  # fmt: skip
    return Divisible(*map(TorchLayer, modules))


class Run:
    """Two forwards and backwards of some layers."""

    def __init__(self, model, is_split=False, chains=True, x=X, hooks=()):
        self.model, self.told = model, []
        statistics = BatchStatistics(model.links)
        gradients = WeightGradients(model.params)
        gradients.begin()
        gradients.completion = Completion(lambda param: self.told.append(param))
        for step in range(2):
            leaf = chainer.Variable(x)
            statistics.added()
            with keyed_random_state(RandomKey(1, step)), statistics:
                y, _ = model.run(leaf, {}, chains=chains)
            self.functions = functions_behind([y])
            self.held = held_bytes(self.functions, model)
            gy = np.random.default_rng(step).normal(size=y.shape).astype(y.dtype)
            walk = GraphWalk(gradients, defer=is_split)
            self.gx = walk.run_activations([leaf], [y], [gy])
            self.held_halfway = held_bytes(self.functions, model)
            walk.run_weights()
        gradients.finish()
        statistics.finish()
        self.y = y.array

    def arrays(self):
        params = [(p.grad, p.array) for _, p in sorted(self.model.namedparams())]
        states = [layer.module.state_dict() for layer in self.model]
        buffers = [b.numpy() for state in states for b in state.values()]
        return [self.y, *self.gx, *(a for pair in params for a in pair), *buffers]

    def told_paths(self):
        paths = {id(param): path for path, param in self.model.namedparams()}
        return [paths[id(param)] for param in self.told]

    def n_chains(self):
        return sum(type(f) is ChainedFunction for f in self.functions)


def held_bytes(functions, model):
    weights = {id(param.array) for param in model.params()}
    found = {}
    for function in functions:
        for array in arrays_of(function):
            if array is not None and array.size and id(array) not in weights:
                place = array.__array_interface__["data"][0]
                found[place] = max(array.nbytes, found.get(place, 0))
    return sum(found.values())


@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "halves"])
def test_the_same_bits_memory_and_order_as_one_by_one(is_split):
    chained, single = Run(layers(), is_split), Run(layers(), is_split, chains=False)
    assert (chained.n_chains(), len(chained.functions)) == (1, 1)
    assert (single.n_chains(), len(single.functions)) == (0, len(single.model))
    for mine, theirs in zip(chained.arrays(), single.arrays()):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)
    assert chained.held == single.held > 0
    assert chained.held_halfway == single.held_halfway
    told = [run.told_paths() for run in (chained, single)]
    assert told[0] == told[1]
    assert {path.split("/")[1] for path in told[0]} == {"0", "1", "6", "7", "9"}


def test_evaluation_without_a_graph():
    ys = []
    for chains in (False, True):
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            y, _ = layers().run(chainer.Variable(X), {}, chains=chains)
        assert y.requires_grad and y.creator_node is None
        ys.append(y.array)
    np.testing.assert_array_equal(*ys)


class Pair(nn.Module):
    def forward(self, x):
        return x, 2 * x


class Sum(nn.Module):
    def forward(self, x, y):
        return x + y


class Index(nn.Module):
    def forward(self, x):
        return x.argmax(-1)


class Half(nn.Module):
    def forward(self, x):
        return x.bfloat16()


def linear():
    torch.manual_seed(0)
    return nn.Linear(6, 6)


def embedding():
    torch.manual_seed(0)
    return nn.Embedding(6, 6)


@pytest.mark.parametrize(
    ("modules", "n_functions"),
    [
        ([linear, nn.Tanh, Pair, Sum], 2),
        ([linear, nn.Tanh, Half, linear, nn.Tanh], 2),
        ([Index, embedding, nn.Tanh, linear], 2),
    ],
    ids=["two tensors", "bfloat16", "integers"],
)
def test_a_chain_ends_where_something_else_passes_than_a_tensor(modules, n_functions):
    chained, single = (
        Run(Divisible(*[TorchLayer(make()) for make in modules]), chains=chains)
        for chains in (True, False)
    )
    assert len(chained.functions) == n_functions < len(single.functions)
    for mine, theirs in zip(chained.arrays(), single.arrays()):
        assert mine is theirs or (mine == theirs).all()


class Wrapping(nn.Module):
    def forward(self, x):
        return [str(x)]


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gy):
        raise ArithmeticError("no gradient")


class FailingBackward(nn.Module):
    def forward(self, x):
        return Failing.apply(x)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Wrapping(), "returned a list without a tensor"),
        (nn.ReLU(inplace=True), "in-place operation"),
        (nn.Linear(7, 7), "cannot be multiplied"),
        (FailingBackward(), "no gradient"),
    ],
    ids=["not a tensor", "in place", "forward", "backward"],
)
def test_errors_name_the_layer(module, message):
    modules = [linear(), nn.Tanh(), module, linear()]
    model = Divisible(*map(TorchLayer, modules)).divide(0, None)
    with pytest.raises(Exception, match=message) as error:
        Run(model)
    assert error.value.layer_position == 2


class Doubled(nn.Module):
    """A module with code of a user, which has a graph of its own."""

    def forward(self, x):
        return 2 * x


class Repeated(nn.Module):
    def forward(self, x):
        return x.expand(*x.shape[:-1], 300).clone()


class Counted(chainer.FunctionHook):
    """A hook that does not need to see each function, such as one that polls."""

    minds_fusion = False

    def __init__(self):
        self.forwards, self.backwards = [], []

    def forward_preprocess(self, function, in_data):
        self.forwards.append((function.label, [x.shape for x in in_data]))

    def backward_postprocess(self, function, in_data, grads):
        self.backwards.append((function.label, [g.shape for g in grads]))


def test_hooks_that_do_not_mind_are_called_for_each_layer():
    model, hook = (
        Divisible(*map(TorchLayer, (linear(), Doubled(), nn.Tanh()))),
        Counted(),
    )
    with hook:
        run = Run(model)
    assert run.n_chains() == 1
    labels = [f"TorchLayer({name})" for name in ("Linear", "Doubled", "Tanh")]
    assert [label for label, _ in hook.forwards] == 2 * labels
    assert hook.forwards[0][1] == [X.shape, (6, 6), (6,)]
    labels.reverse()
    assert [label for label, _ in hook.backwards] == 2 * labels
    assert all(shapes == [X.shape] for _, shapes in hook.backwards)


def block():
    return nn.Sequential(linear(), nn.ReLU())


def graphs(modules, is_split=False):
    """Returns a run, and the numbers of modules of the graphs of its backwards."""
    hook = Counted()
    with hook:
        run = Run(Divisible(*map(TorchLayer, modules)), is_split)
    return run, [label.count(",") + 1 for label, _ in hook.backwards]


@pytest.mark.parametrize("is_split", [False, True], ids=["whole", "halves"])
def test_simple_modules_share_a_graph_that_has_each_weight_once(is_split):
    twice, last = linear(), linear()
    modules = [twice, nn.Tanh(), twice, nn.Tanh(), block(), nn.LayerNorm(6), last]
    together, sizes = graphs(modules, is_split)
    assert sizes[:2] == [5, 2] and sum(sizes) == 2 * 7 * (1 + is_split)
    single = Run(Divisible(*map(TorchLayer, modules)), is_split, chains=False)
    for mine, theirs in zip(together.arrays(), single.arrays()):
        assert mine is theirs or (mine == theirs).all()
    assert together.told_paths() == single.told_paths()


def test_hooks_of_all_modules_are_called_once_in_a_shared_graph():
    calls = []

    def observe(module, inputs, output):
        if type(module) is nn.Linear:
            output.register_hook(lambda gradient: calls.append(id(module)))

    handle = torch.nn.modules.module.register_module_forward_hook(observe)
    try:
        modules = [nn.Tanh(), linear(), nn.Tanh(), linear()]
        Run(Divisible(*map(TorchLayer, modules)), is_split=True, x=X[:, 0])
    finally:
        handle.remove()
    assert calls == 2 * [id(modules[3]), id(modules[1])]


def test_a_graph_has_few_modules_and_numbers():
    assert graphs([linear(), *[nn.Tanh() for _ in range(9)]])[1] == 2 * [2, 8]
    wide = [nn.Linear(6, 600), nn.Tanh(), nn.Linear(600, 600), nn.Tanh()]
    assert graphs(wide)[1] == 2 * [1, 1, 2]
    hooked = nn.Tanh()
    hooked.register_forward_hook(lambda module, inputs, output: None)
    assert graphs([linear(), hooked, nn.Tanh(), nn.Tanh()])[1] == 2 * [2, 1, 1]
    passed = [nn.Unflatten(2, (6, 1)), Repeated(), nn.Tanh(), nn.Tanh()]
    assert graphs(passed)[1] == 2 * [1, 1, 1, 1]


class Minding(chainer.FunctionHook):
    def forward_preprocess(self, function, in_data):
        pass


class Links(chainer.LinkHook):
    def forward_preprocess(self, args):
        pass


def test_layers_that_something_observes_run_alone():
    def model():
        return Divisible(*map(TorchLayer, (linear(), nn.Tanh(), nn.Tanh(), nn.Tanh())))

    for observed in (Minding(), Links(), chainer.using_config("debug", True)):
        with observed:
            run = Run(model())
        assert (run.n_chains(), len(run.functions)) == (0, 4)
    with timed_layers() as seconds:
        run = Run(model())
    assert run.n_chains() == 0 and sorted(seconds) == [0, 1, 2, 3]
    hooked = model()
    hooked[1].add_hook(Links())
    run = Run(hooked)
    assert (run.n_chains(), len(run.functions)) == (1, 3)


def test_a_chain_ends_at_a_skip_and_begins_where_a_gradient_is_needed():
    modules = [linear(), nn.Tanh(), linear(), nn.Tanh(), linear()]
    first, second, third, fourth, last = map(TorchLayer, modules)
    add = pop("h", chainer.functions.add)
    model = Divisible(first, second, stash("h"), third, fourth, add, last)
    y, _ = model.run(chainer.Variable(X), {}, chains=True)
    kinds = [type(f).__name__ for f in functions_behind([y])]
    assert kinds.count("ChainedFunction") == 2 and len(kinds) == 4
    y, _ = Divisible(first, second, third).run(X, {}, chains=True)
    assert [len(f.inputs) for f in functions_behind([y])] == [3, 3]


def test_chainers_own_backward_and_gradients_of_some():
    model = layers()
    y, _ = model.run(chainer.Variable(X), {}, chains=True)
    (function,) = functions_behind([y])
    assert backward_of(type(function)).has_arrays
    twin = layers()
    z = twin(chainer.Variable(X))
    for each, out in ((model, y), (twin, z)):
        each.cleargrads()
        out.grad = np.ones_like(out.array)
        out.backward()
    for mine, theirs in zip(model.params(), twin.params()):
        assert mine.grad is theirs.grad or (mine.grad == theirs.grad).all()
    y, _ = model.run(chainer.Variable(X), {}, chains=True)
    (found,) = chainer.grad([y], [model[6].weight])
    assert found.shape == (24, 24)
    with pytest.raises(RuntimeError, match="has been used by a backward already"):
        chainer.grad([y], [model[6].weight])


class Scale(nn.Module):
    """Its gradient is that of the output, in the same memory."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(5, 2, 6))

    def forward(self, x):
        return x + self.shift


def test_gradients_of_parameters_do_not_share_memory():
    model = Divisible(*map(TorchLayer, (Scale(), Scale(), nn.Tanh())))
    x = chainer.Variable(X)
    y, _ = model.run(x, {}, chains=True)
    y.grad = np.ones_like(y.array)
    y.backward()
    arrays = [x.grad, *(param.grad for param in model.params())]
    for i, array in enumerate(arrays):
        assert not any(np.shares_memory(array, other) for other in arrays[:i])


def test_a_stage_of_a_pipeline_has_chains(monkeypatch):
    lengths, run = [], ChainedFunction.run

    def counted(self, x, enter):
        found = run(self, x, enter)
        lengths.append(found[0])
        return found

    monkeypatch.setattr(ChainedFunction, "run", counted)
    modules = [nn.Flatten(), nn.Linear(12, 6), linear(), nn.Tanh(), linear()]
    model = Divisible(*map(TorchLayer, modules))
    with Pipeline(model, MPI.COMM_SELF, n_microbatches=2) as pipe:
        pipe.step(X, np.zeros(5, np.int32))
    # No gradient of the input is needed, nor of what Flatten returns.
    assert lengths == [3, 3]
