"""The network on ranks is the network on one rank."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from heterogeneous import RectangularMLP, rectangular_partition, transfers
from heterogeneous.units import initial
from tests.support.mpiexec import assert_on_ranks

N, M, OUT, S = 7, 23, 4, 50
TIMEOUT = 30
EPSILON = 0.02


def data(dtype="f", s=S):
    random = np.random.RandomState(1)
    return random.randn(s, N).astype(dtype), random.rand(s, OUT).astype(dtype)


def partition_of(n_ranks, seed, **options):
    abilities = np.random.RandomState(seed).uniform(0.2, 1, n_ranks)
    return rectangular_partition(abilities, N, M, OUT, S, **options)


def sigmoid(u):
    return 1 / (1 + np.exp(-u))


def paper(w, v, x, d):
    """Equations (1) to (4): the error, and the sums of dW and dV over samples."""
    f = sigmoid(x @ w.T)
    h = sigmoid(f @ v.T)
    delta_2 = (h - d) * h * (1 - h)
    delta_1 = f * (1 - f) * (delta_2 @ v)
    return 0.5 * ((h - d) ** 2).sum(), {"W": delta_1.T @ x, "V": delta_2.T @ f}


class PaperSGD:
    """Equations (5) and (6), and the same with momentum."""

    def __init__(self, momentum=0.0):
        self.momentum, self.v = momentum, {}

    def update(self, weights, sums):
        for name, g in sums.items():
            self.v[name] = self.momentum * self.v.get(name, 0) - EPSILON * g
            weights[name] += self.v[name]


class PaperAdam:
    def __init__(self):
        self.m, self.v, self.t = {}, {}, 0

    def update(self, weights, sums):
        self.t += 1
        for name, g in sums.items():
            g = g / S
            self.m[name] = 0.9 * self.m.get(name, 0) + 0.1 * g
            self.v[name] = 0.999 * self.v.get(name, 0) + 0.001 * g * g
            rate = 0.01 * np.sqrt(1 - 0.999**self.t) / (1 - 0.9**self.t)
            weights[name] -= rate * self.m[name] / (np.sqrt(self.v[name]) + 1e-8)


OPTIMIZERS = {
    "SGD": (lambda: chainer.optimizers.SGD(EPSILON * S), PaperSGD),
    "momentum": (
        lambda: chainer.optimizers.MomentumSGD(EPSILON * S, 0.9),
        lambda: PaperSGD(0.9),
    ),
    "Adam": (lambda: chainer.optimizers.Adam(0.01), PaperAdam),
}


def assert_copies_are_equal(comm, mlp):
    """Bit for bit, wherever a hidden unit is computed twice."""
    mine = mlp.partition.rectangles[comm.rank].units, mlp.W.array, mlp.V.array
    seen = {}
    for (start, stop), w, v in comm.allgather(mine):
        assert w.shape == (stop - start, N) and v.shape == (OUT, stop - start)
        for unit in range(start, stop):
            bits = w[unit - start].tobytes() + v[:, unit - start].tobytes()
            assert seen.setdefault(unit, bits) == bits, unit
    assert sorted(seen) == list(range(M))


def serial_equivalence(comm, seed, name, dtype, moves):
    make, make_paper = OPTIMIZERS[name]
    order = ("ascending", "any")[seed % 2]
    first = partition_of(comm.size, seed, order=order)
    mlp = RectangularMLP(
        N, M, OUT, comm, first, seed=seed, dtype=dtype, timeout=TIMEOUT
    )
    optimizer = make().setup(mlp)
    x, t = data(dtype)
    weights = initial(seed, (0, M), N, M, OUT, np.float64)
    weights.pop("b")
    serial = make_paper()
    others = np.random.RandomState(seed + 100).uniform(0.2, 1, (2, comm.size))
    for i in range(30):
        if moves and i == 10:
            mlp.remap(first.resized(others[0]), optimizer=optimizer)
        if moves and i == 20:
            mlp.remap(first.remade(others[1]), optimizer=optimizer)
        error, sums = paper(weights["W"], weights["V"], *data("d"))
        loss = mlp.step(x, t)["loss"]
        assert loss == pytest.approx(error / S, rel=1e-5)
        optimizer.update()
        serial.update(weights, sums)
    assert_copies_are_equal(comm, mlp)
    found = mlp.gather()
    assert sorted(found) == ["V", "W"]
    for key, expected in weights.items():
        assert found[key].dtype == dtype
        error = np.abs(found[key] - expected).max() / np.abs(expected).max()
        assert error < (1e-5 if dtype == "f" else 1e-10), (key, error)
    h = mlp.predict(x)
    expected = sigmoid(sigmoid(x @ weights["W"].T) @ weights["V"].T)
    np.testing.assert_allclose(h, expected, rtol=2e-5)
    for _ in range(2):
        mlp.close()
        assert not mlp.comm


def several(comm, cases):
    for case in cases:
        serial_equivalence(comm, *case)


@pytest.mark.parametrize(
    "n_ranks",
    [
        1,
        pytest.param(2, marks=pytest.mark.matrix),
        pytest.param(3, marks=pytest.mark.matrix),
        4,
        pytest.param(6, marks=pytest.mark.matrix),
    ],
)
def test_it_equals_the_equations(n_ranks):
    cases = [
        (seed, name, dtype, moves)
        for seed, (name, dtype, moves) in enumerate(
            [
                ("SGD", "f", False),
                ("SGD", "d", True),
                ("momentum", "f", True),
                ("Adam", "d", True),
                ("Adam", "f", False),
            ]
        )
    ]
    assert_on_ranks(n_ranks, several, cases)


@pytest.mark.matrix
@pytest.mark.parametrize("n_ranks", range(1, 7))
def test_it_equals_the_equations_in_all_ways(n_ranks):
    cases = [
        (seed, name, dtype, moves)
        for seed in range(10, 16)
        for name in OPTIMIZERS
        for dtype in "fd"
        for moves in (False, True)
    ]
    assert_on_ranks(n_ranks, several, cases, timeout=300)


class Serial(chainer.Chain):
    """The same network in plain Chainer."""

    def __init__(self, weights):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(N, M, initialW=weights["W"], initial_bias=weights["b"])
            self.l2 = L.Linear(M, OUT, initialW=weights["V"], initial_bias=weights["c"])

    def forward(self, x):
        return self.l2(F.relu(self.l1(x)))


def with_biases(comm):
    """Another activation and loss, biases, weight decay; samples of other numbers."""
    mlp = RectangularMLP(
        N,
        M,
        OUT,
        comm,
        partition_of(comm.size, 3),
        activation=F.relu,
        out_activation=F.identity,
        lossfun=F.softmax_cross_entropy,
        nobias=False,
        timeout=TIMEOUT,
    )
    optimizer = chainer.optimizers.MomentumSGD(0.2).setup(mlp)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.01))
    serial = Serial(mlp.gather())
    theirs = chainer.optimizers.MomentumSGD(0.2).setup(serial)
    theirs.add_hook(chainer.optimizer_hooks.WeightDecay(0.01))
    for i in range(12):
        if i == 6:
            mlp.remap(partition_of(comm.size, 4, order="any"), optimizer=optimizer)
        s = (S, 11, 40)[i % 3]
        x, _ = data(s=s)
        t = np.random.RandomState(i).randint(0, OUT, s).astype("i")
        loss = F.softmax_cross_entropy(serial(x), t)
        serial.cleargrads()
        loss.backward()
        theirs.update()
        assert mlp.step(x, t)["loss"] == pytest.approx(float(loss.array), rel=1e-5)
        optimizer.update()
    found = mlp.gather()
    for name, expected in [
        ("W", serial.l1.W),
        ("b", serial.l1.b),
        ("V", serial.l2.W),
        ("c", serial.l2.b),
    ]:
        np.testing.assert_allclose(found[name], expected.array, rtol=1e-4, atol=1e-6)
    assert len({c.tobytes() for c in comm.allgather(mlp.c.array)}) == 1
    for s in (1, 2, 33):
        x, _ = data(s=s)
        np.testing.assert_allclose(
            mlp.predict(x), serial(x).array, rtol=1e-4, atol=1e-5
        )
    mlp.close()


@pytest.mark.parametrize("n_ranks", [pytest.param(2, marks=pytest.mark.matrix), 4])
def test_biases_and_another_loss(n_ranks):
    assert_on_ranks(n_ranks, with_biases)


def first_weights(comm):
    expected = initial(5, (0, M), N, M, OUT, "f")
    for seed in range(3):
        mlp = RectangularMLP(N, M, OUT, comm, partition_of(comm.size, seed), seed=5)
        for name, values in mlp.gather().items():
            np.testing.assert_array_equal(values, expected[name])
        mlp.close()


def test_first_weights_do_not_depend_on_the_partition():
    assert_on_ranks(3, first_weights)


def remapped_bytes(comm):
    """Only what a rank lacks travels, with both moments of Adam."""
    before = partition_of(comm.size, 0)
    mlp = RectangularMLP(N, M, OUT, comm, before, timeout=TIMEOUT)
    optimizer = chainer.optimizers.Adam().setup(mlp)
    x, t = data()
    for n_arrays in (1, 3):
        before = mlp.partition
        others = np.random.RandomState(n_arrays).uniform(0.2, 1, comm.size)
        for after in (before.resized(others), before.remade(others[::-1])):
            before = mlp.partition
            moves = transfers(before, after)
            mlp.remap(after, optimizer=optimizer)
            units = sum(m.stop - m.start for m in moves if m.source == comm.rank)
            assert mlp.sent_bytes == units * (N + OUT) * 4 * n_arrays
            assert mlp.W.array.shape[0] == after.rectangles[comm.rank].n_units
            assert mlp.W.grad is None and mlp.partition is after
            of_all = comm.allgather(mlp.sent_bytes)
            lacking = sum(m.stop - m.start for m in moves)
            assert sum(of_all) == lacking * (N + OUT) * 4 * n_arrays
        assert lacking
        mlp.step(x, t)
        optimizer.update()
    mlp.remap(mlp.partition, optimizer=optimizer)
    assert mlp.sent_bytes == 0
    mlp.close()


def test_a_remapping_sends_the_units_that_move():
    assert_on_ranks(4, remapped_bytes)


def step_bytes(comm):
    """Equation (8)'s elements: within columns, and between them where units overlap."""
    mlp = RectangularMLP(N, M, OUT, comm, partition_of(comm.size, 1), timeout=TIMEOUT)
    x, t = data()
    mlp.step(x, t)
    p = mlp.partition
    column = p.columns[p.rectangles[comm.rank].column]
    samples = p.rectangles[comm.rank].n_samples
    times = len(column) - 1 if comm.rank == column[0] else 1
    within = times * samples * OUT * 4 if len(column) > 1 else 0
    of_all = comm.allreduce(mlp.sent_bytes - within)
    loss = 8 * (p.n_columns - 1 + comm.size - 1) if p.n_columns > 1 else 0
    assert of_all == 2 * (p.n_columns - 1) * (N + OUT) * M * 4 + loss
    mlp.close()


def test_a_step_sends_what_equation_8_counts():
    assert_on_ranks(4, step_bytes)
