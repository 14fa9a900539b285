"""A module of PyTorch as a link: memory, gradients, copies, modes."""

import copy
import pickle
import types

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mpi4py import MPI  # noqa: E402
from torch import nn  # noqa: E402

from divisible import Divisible, RandomKey, keyed_random_state  # noqa: E402
from divisible.backward.backprop import backward_input  # noqa: E402
from divisible.backward.weight_gradients import WeightGradients  # noqa: E402
from pipeline import Pipeline, load_snapshot, save_snapshot  # noqa: E402
from torch_layers import TorchLayer, TorchLoss  # noqa: E402

X = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)


def block():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 4, bias=False)
    )


def same_memory(param, tensor):
    return param.array.__array_interface__["data"][0] == tensor.data_ptr()


def check_shared(layer):
    layer.share()
    tensors = dict(layer.module.named_parameters())
    params = {path[1:]: param for path, param in layer.namedparams()}
    assert {*params} == {*tensors}
    for name, param in params.items():
        assert same_memory(param, tensors[name]), name


def plain_gradients(module, x, gy):
    """Returns the output and the gradients of a copy of the module by PyTorch alone."""
    module = copy.deepcopy(module)
    leaf = torch.from_numpy(x.copy()).requires_grad_()
    y = module(leaf)
    y.backward(torch.from_numpy(gy))
    grads = {name: p.grad for name, p in module.named_parameters()}
    return y.detach().numpy(), leaf.grad.numpy(), grads


def test_gradients_are_those_of_pytorch_bit_for_bit():
    layer, gy = TorchLayer(block()), X[:, :4] * 3
    y0, gx0, grads0 = plain_gradients(layer.module, X, gy)
    x = chainer.Variable(X)
    y = layer(x)
    y.grad = gy
    layer.cleargrads()
    y.backward()
    np.testing.assert_array_equal(y.array, y0)
    np.testing.assert_array_equal(x.grad, gx0)
    for path, param in layer.namedparams():
        np.testing.assert_array_equal(param.grad, grads0[path[1:]].numpy())


class Spectrum(nn.Module):
    def forward(self, x):
        return torch.fft.fft(x).conj()


class Power(nn.Module):
    def forward(self, x):
        return (x * x.conj()).real.sum()


def test_complex_numbers_between_layers_have_gradients():
    x = chainer.Variable(X)
    h = TorchLayer(Spectrum())(x)
    assert h.dtype == np.complex64
    TorchLayer(Power())(h).backward()
    leaf = torch.from_numpy(X).requires_grad_()
    Power()(Spectrum()(leaf)).backward()
    np.testing.assert_array_equal(x.grad, leaf.grad.numpy())


def test_sparse_gradients_become_dense():
    layer = TorchLayer(nn.Embedding(7, 6, sparse=True))
    layer.cleargrads()
    F.sum(layer(np.array([1, 2, 1]))).backward()
    np.testing.assert_array_equal(layer.weight.grad[:4, 0], [0, 2, 1, 0])


class Added(nn.Module):
    """Adds parameters whose gradients are that of the output, and one of its sum."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.zeros(6)) for _ in range(3))

    def forward(self, x):
        return x + self.a + self.b + self.c.sum()


def test_gradients_of_parameters_do_not_share_memory():
    layer, x, gy = TorchLayer(Added()), chainer.Variable(X[0]), X[1].copy()
    y = layer(x)
    y.grad = gy
    layer.cleargrads()
    y.backward()
    for param in layer.params():
        # Hooks such as GradientClipping do the same.
        param.grad *= 2
    for param in (layer.a, layer.b):
        np.testing.assert_array_equal(param.grad, 2 * X[1])
    np.testing.assert_allclose(layer.c.grad, np.full(6, 2 * X[1].sum()), rtol=1e-6)
    np.testing.assert_array_equal(x.grad, X[1])
    np.testing.assert_array_equal(gy, X[1])


def test_memory_is_shared_both_ways_whoever_replaces_it(tmp_path):
    layer = TorchLayer(block())
    check_shared(layer)
    name, weight = "0.weight", layer.module[0].weight
    param = getattr(layer, name)
    param.array[...] = 2
    assert (weight == 2).all()
    with torch.no_grad():
        weight.fill_(3)
    assert (param.array == 3).all()
    # Chainer replaces the array.
    param.array = np.full((8, 6), 4, np.float32)
    assert (layer.module.state_dict()[name] == 4).all()
    check_shared(layer)
    # PyTorch replaces the memory of the tensor, the tensor, and the dtype.
    weight.data = torch.full((8, 6), 5.0)
    layer(X)
    assert (param.array == 5).all()
    layer.module[0].weight = nn.Parameter(torch.full((8, 6), 6.0))
    layer(X)
    assert (param.array == 6).all()
    check_shared(layer)
    layer.module.double()
    assert layer(X.astype(np.float64)).dtype == np.float64
    assert param.dtype == np.float64
    check_shared(layer)
    layer.module.float()
    other = block()
    layer.module.load_state_dict(other.state_dict())
    np.testing.assert_array_equal(param.array, other[0].weight.detach().numpy())
    layer.module.load_state_dict(
        {k: v * 2 for k, v in other.state_dict().items()}, assign=True
    )
    check_shared(layer)
    np.testing.assert_array_equal(param.array, 2 * other[0].weight.detach().numpy())
    chainer.serializers.save_npz(tmp_path / "layer.npz", layer)
    again = TorchLayer(nn.Sequential(*(m for m in block())))
    chainer.serializers.load_npz(tmp_path / "layer.npz", again)
    check_shared(again)
    for key, tensor in layer.module.state_dict().items():
        assert (again.module.state_dict()[key] == tensor).all()


def test_the_same_memory_in_another_order():
    module = nn.Linear(6, 3)
    layer = TorchLayer(module)
    layer.weight.array = layer.weight.array.T
    layer.share()
    np.testing.assert_array_equal(module.weight.detach().numpy(), layer.weight.array)
    assert same_memory(layer.weight, module.weight)


def test_no_parameter_is_copied():
    module = nn.Linear(300, 300)
    before = module.weight.data_ptr()
    layer = TorchLayer(module)
    chainer.optimizers.Adam().setup(layer)
    loss = F.sum(layer(np.ones((2, 300), np.float32)))
    layer.cleargrads()
    loss.backward()
    layer.weight.update()
    assert module.weight.data_ptr() == before
    assert same_memory(layer.weight, module.weight)


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda layer: layer.copy("copy"),
        lambda layer: pickle.loads(pickle.dumps(layer)),
    ],
)
def test_copies_have_memory_and_a_module_of_their_own(copied):
    layer = TorchLayer(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)))
    y = layer(X).array.copy()
    other = copied(layer)
    check_shared(other)
    assert other.module is not layer.module
    getattr(other, "0.weight").array[...] = 7
    assert not (layer.module[0].weight == 7).any()
    assert (other.module.state_dict()["0.weight"] == 7).all()
    np.testing.assert_array_equal(layer(X).array, y)


def test_a_shared_copy_has_the_same_memory():
    layer = TorchLayer(block())
    other = layer.copy()
    getattr(layer, "0.weight").array[...] = 7
    np.testing.assert_array_equal(other(X).array, layer(X).array)
    assert other.module is not layer.module


def test_modules_that_share_a_parameter_are_tied_layers():
    """pytorch #180952."""
    embedding, head = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
    head.weight = embedding.weight
    model = Divisible(TorchLayer(embedding), TorchLayer(head))
    assert [tie.path for tie in model.ties] == ["/0/weight"]
    ids = np.array([[1, 2], [3, 3]])
    y = model(ids)
    model.cleargrads()
    F.sum(y * y).backward()
    plain = head(embedding(torch.from_numpy(ids)))
    (plain * plain).sum().backward()
    np.testing.assert_allclose(
        model[0].weight.grad, embedding.weight.grad.numpy(), rtol=1e-5
    )


def test_a_transposed_tie_of_a_module_is_refused():
    model = Divisible(chainer.links.Linear(6, 6), TorchLayer(nn.Linear(6, 6)))
    with pytest.raises(ValueError, match="/1/weight is a parameter of a TorchLayer"):
        model.tie("/0/W", "/1/weight", transpose=True)
    model.tie("/0/W", "/1/weight")
    assert model[1].weight is model[0].W


def test_evaluation_and_training_follow_chainer():
    frozen = nn.BatchNorm1d(6).eval()
    layer = TorchLayer(nn.Sequential(nn.Dropout(0.5), frozen))
    with chainer.using_config("train", False):
        np.testing.assert_allclose(layer(X).array, X, rtol=1e-4)
    assert (layer(X).array == 0).any()
    assert int(frozen.num_batches_tracked) == 0
    with chainer.no_backprop_mode():
        y = layer(X)
    assert y.creator is None


def test_an_evaluation_leaves_the_modes_of_modules():
    layer = TorchLayer(nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5)))
    with chainer.using_config("train", False):
        layer(X)
    other = copy.deepcopy(layer)
    assert (other(X).array == 0).any()
    # Frozen between an evaluation and the next step.
    norm = layer.module[0].eval()
    layer(X)
    assert not norm.training
    assert int(norm.num_batches_tracked) == 0


def test_dropout_draws_by_step_microbatch_and_layer():
    model = Divisible(TorchLayer(nn.Dropout()), TorchLayer(nn.Dropout()))
    state = torch.get_rng_state()
    outputs = []
    for key in (RandomKey(1, 0), RandomKey(1, 0), RandomKey(1, 0, 1), RandomKey(1, 2)):
        with keyed_random_state(key):
            outputs.append(model(X).array)
    assert (torch.get_rng_state() == state).all()
    assert (outputs[0] == outputs[1]).all()
    assert (outputs[0] != outputs[2]).any()
    assert (outputs[0] != outputs[3]).any()
    with keyed_random_state(RandomKey(1, 0)):
        first = model.view(0, 1)(X).array
    assert (first == 0).sum() < (outputs[0] == 0).sum()
    assert (outputs[0][first == 0] == 0).all()


class Several(nn.Module):
    """Several tensors and structures in and out."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((6,), 0.5))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x, pair, scale=1.0, index=None):
        a, b = pair
        y = (x + a * b) * self.weight * scale
        return {"y": y, "signs": (x > 0).int(), "row": [y[index], x.detach()]}


def test_several_inputs_and_outputs_and_integers():
    layer = TorchLayer(Several())
    x, a = chainer.Variable(X), chainer.Variable(X * 2)
    found = layer(x, [a, X], scale=2.0, index=np.array([1, 1]))
    assert found["signs"].dtype == np.int32
    assert not found["signs"].requires_grad
    assert not found["row"][1].requires_grad
    np.testing.assert_array_equal(found["row"][0].array, found["y"].array[[1, 1]])
    layer.cleargrads()
    (F.sum(found["y"]) + F.sum(found["row"][0])).backward()
    counts = np.ones((5, 1), np.float32)
    counts[1] = 3
    np.testing.assert_allclose(x.grad, np.broadcast_to(counts, X.shape), rtol=1e-6)
    np.testing.assert_allclose(a.grad, counts * X, rtol=1e-6)
    assert layer.unused.grad is None
    assert layer.weight.grad.shape == (6,)


def test_frozen_parameters_get_no_gradient_and_no_decay():
    module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    module[0].requires_grad_(False)
    layer = TorchLayer(module)
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(layer)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.1))
    before = {k: v.clone() for k, v in module.state_dict().items()}

    def step():
        loss = F.sum(layer(X))
        layer.cleargrads()
        loss.backward()
        optimizer.update()

    step()
    changed = [k for k, v in module.state_dict().items() if (v != before[k]).any()]
    assert changed == ["1.weight", "1.bias"]
    module[0].requires_grad_(True)
    step()
    step()
    assert (module[0].weight != before["0.weight"]).any()


@pytest.mark.parametrize("n_layers", [1, 3])
def test_gradients_in_a_script_that_has_switched_them_off_for_pytorch(n_layers):
    """Chainer decides whether there is a backward, up to the input of the layers."""
    torch.manual_seed(0)
    model = Divisible(*(TorchLayer(nn.Linear(6, 6)) for _ in range(n_layers)))
    x, found = chainer.Variable(X), []
    for is_enabled in (True, False):
        model.cleargrads()
        x.cleargrad()
        with torch.set_grad_enabled(is_enabled):
            pipe = Pipeline(model.divide(), MPI.COMM_SELF, n_microbatches=1)
            with pipe:
                pipe.step(X, np.arange(len(X), dtype=np.int32))
            found.append([param.grad.tobytes() for _, param in model.namedparams()])
            F.sum(model(x)).backward()
            found[-1].append(x.grad.tobytes())
    assert found[0] == found[1]


def test_a_call_in_inference_mode_is_refused():
    layer = TorchLayer(nn.Linear(6, 3))
    with torch.inference_mode(), pytest.raises(RuntimeError, match="inference_mode"):
        layer(X)
    assert layer(X).shape == (5, 3)


class Freezing(nn.Module):
    """Freezes a part of itself in its first forward, as some schemes of training do."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        self.first.requires_grad_(False)
        return self.last(self.first(x))


@pytest.mark.parametrize("freezes_all", [False, True])
@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_parameters_that_a_forward_freezes_get_no_gradient(schedule, freezes_all):
    torch.manual_seed(0)
    module = Freezing()
    if freezes_all:
        module.last.requires_grad_(False)
    model = Divisible(L.Linear(6, 6), TorchLayer(module)).divide()
    with Pipeline(model, MPI.COMM_SELF, n_microbatches=2, schedule=schedule) as pipe:
        for _ in range(2):
            pipe.step(X, np.zeros(len(X), np.int32))
            names = {
                path for path, param in model.namedparams() if param.grad is not None
            }
            expected = {"/0/W", "/0/b", "/1/last.weight", "/1/last.bias"}
            assert names == {n for n in expected if not (freezes_all and "last" in n)}


def half_frozen(is_frozen=True):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    module[0].requires_grad_(not is_frozen)
    pipe = Pipeline(
        Divisible(TorchLayer(module)).divide(),
        MPI.COMM_SELF,
        n_microbatches=2,
        lossfun=lambda y, t: F.mean(F.square(y)),
        accfun=None,
    )
    return module, pipe, pipe.setup(chainer.optimizers.MomentumSGD(0.1))


def trained(module, pipe, optimizer):
    for _ in range(2):
        pipe.step(X, np.zeros(len(X), np.int32))
        optimizer.update()
    return {key: value.clone() for key, value in module.state_dict().items()}


@pytest.mark.parametrize("is_frozen", [True, False])
def test_what_is_frozen_and_enabled_is_so_in_a_resumed_run(is_frozen, tmp_path):
    """Whether the script freezes the tensors before it loads, or not again."""
    run = half_frozen()
    before = trained(*run)
    save_snapshot(tmp_path / "first", *run[1:])
    frozen = trained(*run)
    assert torch.equal(frozen["0.weight"], before["0.weight"])
    save_snapshot(tmp_path / "second", *run[1:])
    run[0].requires_grad_(True)
    enabled = trained(*run)
    assert (enabled["0.weight"] != before["0.weight"]).all()
    again = half_frozen(is_frozen)
    for name in "first", "second":
        load_snapshot(tmp_path / name, *again[1:])
        assert not again[0][0].weight.requires_grad
        if name == "second":
            again[0].requires_grad_(True)
        found = trained(*again)
        expected = enabled if name == "second" else frozen
        assert all(torch.equal(found[key], expected[key]) for key in found), name


def test_a_parameter_that_a_script_has_disabled_stays_so():
    module, pipe, optimizer = half_frozen()
    pipe.stages[0].disable_update()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    module.requires_grad_(True)
    found = trained(module, pipe, optimizer)
    assert all(torch.equal(found[key], before[key]) for key in before)


@pytest.mark.parametrize(
    "x",
    [
        X[::-1],
        np.broadcast_to(X[:1], X.shape),
        np.asfortranarray(X),
        np.arange(60, dtype=np.float32).reshape(5, 12)[:, ::2],
    ],
)
def test_any_memory_of_an_input(x):
    layer = TorchLayer(block())
    before = x.copy()
    y = layer(x).array
    np.testing.assert_allclose(y, layer(np.ascontiguousarray(x)).array, rtol=1e-5)
    np.testing.assert_array_equal(x, before)


def test_channels_last_stay_so():
    layer = TorchLayer(nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last))
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype("f")
    y = layer(x.transpose(0, 3, 1, 2))
    assert y.array.strides[1] == 4
    layer.cleargrads()
    F.sum(y).backward()
    assert layer.weight.grad.shape == (4, 3, 3, 3)


def test_autocast_inside_a_layer_and_around_it():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.linear(x)

    torch.manual_seed(0)
    inner = TorchLayer(Inner())
    around = TorchLayer(copy.deepcopy(inner.module.linear), autocast=torch.bfloat16)
    ys = [layer(X) for layer in (inner, around)]
    np.testing.assert_array_equal(ys[0].array, ys[1].array)
    assert ys[0].dtype == np.float32
    for y, layer in zip(ys, (inner, around)):
        layer.cleargrads()
        F.sum(y).backward()
    assert getattr(inner, "linear.weight").grad.dtype == np.float32


def test_bad_modules_are_refused():
    with pytest.raises(TypeError, match=r"needs a torch.nn.Module, not function"):
        TorchLayer(F.relu)
    with pytest.raises(TypeError, match="weight is torch.bfloat16, which NumPy lacks"):
        TorchLayer(nn.Linear(2, 2).bfloat16())

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.device = nn.Parameter(torch.ones(2))

    with pytest.raises(ValueError, match="device is the name of a parameter"):
        TorchLayer(Named())


class Wrapping(nn.Module):
    def forward(self, x):
        return types.SimpleNamespace(y=2 * x)


def test_an_output_whose_tensors_are_not_found_is_refused():
    with pytest.raises(TypeError, match="returned a SimpleNamespace without a tensor"):
        TorchLayer(Wrapping())(X)


def test_a_second_derivative_is_refused():
    x = chainer.Variable(X)
    y = F.sum(TorchLayer(block())(x))
    with pytest.raises(RuntimeError, match="a gradient of a gradient"):
        chainer.grad([y], [x], enable_double_backprop=True)


def test_a_second_backward_is_refused():
    y = F.sum(TorchLayer(block())(chainer.Variable(X)))
    y.backward()
    with pytest.raises(RuntimeError, match="has been used by a backward already"):
        y.backward()


def test_a_module_that_overwrites_its_input_is_refused():
    """Another layer may need the values for its backward."""
    layer = TorchLayer(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3)))
    with pytest.raises(RuntimeError, match="in-place operation"):
        layer(chainer.Variable(X.copy()))
    # PyTorch itself lets it overwrite the data of the user.
    with pytest.raises(RuntimeError, match="in-place operation has changed an input"):
        layer(X.copy())
    with (
        chainer.no_backprop_mode(),
        pytest.raises(RuntimeError, match=r"TorchLayer\(Sequential\): an in-place"),
    ):
        layer(chainer.Variable(X.copy()))


def test_hooks_of_a_module_are_called_once():
    calls = []
    layer = TorchLayer(block())
    first = layer.module[0]
    first.register_forward_hook(lambda *args: calls.append("forward"))
    first.register_full_backward_hook(lambda *args: calls.append("backward"))
    x = chainer.Variable(X)
    y = layer(x)
    gradients = WeightGradients(layer.params)
    gradients.begin()
    _, pending = backward_input([x], [y], [np.ones_like(y.array)], gradients)
    pending.run()
    gradients.finish()
    assert calls == ["forward", "backward"]
    assert all(param.grad is not None for param in layer.params())


class Counting(nn.Module):
    """Replaces a buffer in its forward, and reads it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x):
        self.count = self.count + 1
        return x * self.count


def test_state_that_the_module_has_replaced_is_saved_and_loaded(tmp_path):
    layer = TorchLayer(nn.Sequential(Counting(), nn.Linear(6, 3)))
    path = tmp_path / "layer.npz"
    layer(X)
    layer(X)
    layer.module[1].weight = nn.Parameter(torch.full((3, 6), 5.0))
    chainer.serializers.save_npz(path, layer)
    other = TorchLayer(nn.Sequential(Counting(), nn.Linear(6, 3)))
    other(X)
    other.module[1].weight = nn.Parameter(torch.full((3, 6), 6.0))
    chainer.serializers.load_npz(path, other)
    np.testing.assert_array_equal(other(X).array, layer(X).array)
    assert int(other.module[0].count) == int(layer.module[0].count) == 3


def test_a_replaced_buffer_moves_once_when_its_layer_is_recomputed():
    modules = nn.Sequential(nn.Linear(6, 3), Counting(), nn.Linear(3, 2))
    model = Divisible()
    for module in modules:
        model.append(TorchLayer(module), recompute=True)
    options = {"lossfun": TorchLoss(nn.CrossEntropyLoss()), "accfun": None}
    with Pipeline(model, MPI.COMM_SELF, n_microbatches=2, **options) as pipe:
        pipe.step(X, np.zeros(5, np.int64))
    assert int(modules[1].count) == 2


@pytest.mark.parametrize(
    "module", [nn.LayerNorm(6), nn.Conv1d(6, 6, 1), nn.Linear(6, 6)], ids=str
)
def test_a_backward_reads_the_version_of_weights_that_its_parameters_have(module):
    layer, x = TorchLayer(module), chainer.Variable(X[:, :, None])
    if not isinstance(module, nn.Conv1d):
        x = chainer.Variable(X)
    newest = layer.weight.array
    _, expected, _ = plain_gradients(module, x.array, np.ones_like(x.array))
    y = layer(x)
    # Those of the next minibatch, as in TwoVersionStage.
    layer.weight.array = 3 * newest
    layer(x)
    layer.weight.array = newest
    y.grad = np.ones_like(y.array)
    y.backward()
    np.testing.assert_array_equal(x.grad, expected)


class Product(nn.Module):
    """Takes a weight as an argument, and may have others of its own."""

    def __init__(self, n_scales):
        super().__init__()
        self.scales = nn.ParameterList(torch.full((3,), 2.0) for _ in range(n_scales))

    def forward(self, weight, x):
        y = x @ weight.T
        return y * self.scales[0] if len(self.scales) else y


@pytest.mark.parametrize("n_scales", [0, 1])
def test_weights_of_other_links_get_their_gradient_in_the_second_half(n_scales):
    link, layer = chainer.links.Linear(6, 3), TorchLayer(Product(n_scales))
    x = chainer.Variable(X)
    y = layer(2 * link.W, x)
    expected = chainer.grad([y], [link.W, x, *layer.params()])
    gradients = WeightGradients(lambda: [link.W, *layer.params()])
    gradients.begin()
    y = layer(2 * link.W, x)
    (gx,), pending = backward_input([x], [y], [np.ones_like(y.array)], gradients)
    pending.run()
    gradients.finish()
    found = [link.W.grad, gx, *(param.grad for param in layer.params())]
    for mine, theirs in zip(found, expected):
        np.testing.assert_allclose(mine, theirs.array, rtol=1e-6)
