"""Pipelines with products in bfloat16: as a serial run, and on all ranks alike."""

import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

import chainer_kernels
from chainer_kernels import product_dtype
from chainer_kernels.bfloat16 import rounded
from divisible import Divisible
from mixed_precision import MixedPrecision, to_float16
from pipeline import (
    DisagreementError,
    Pipeline,
    load_snapshot,
    save_snapshot,
)
from tests.support.equivalence import check_equal, make_batches, set_up, train_on
from tests.support.mpiexec import assert_on_ranks


def model():
    return Divisible(
        L.Convolution2D(3, 8, 3, pad=1),
        F.relu,
        L.Linear(8 * 36, 20),
        F.tanh,
        L.Linear(20, 20),
        F.tanh,
        L.Linear(20, 4),
    )


CUTS = [0, 3, 7]


def quiet(function, *arguments, **options):
    with warnings.catch_warnings():
        # Processors without instructions warn.
        warnings.simplefilter("ignore", RuntimeWarning)
        return function(*arguments, **options)


def equal_a_serial_run(comm):
    for schedule, options in (
        ("1f1b", {}),
        ("gpipe", {"recompute": "always"}),
        ("zb_h1", {"weight_groups": 2}),
    ):
        with chainer_kernels.products("bfloat16"):
            quiet(
                check_equal,
                comm,
                model,
                CUTS,
                make_batches([8, 8, 8], (3, 6, 6)),
                # A weight that differs in its last bit may be rounded to another one.
                rtol=1e-3,
                atol=1e-4,
                serially_in_microbatches=True,
                n_microbatches=4,
                schedule=schedule,
                **options,
            )


def round_operands(comm):
    """Gradients are those of rounded operands, not of float32's."""
    x, t = make_batches([8], 6)[0]
    found = {}
    for dtype in ("float32", "bfloat16"):
        np.random.seed(0)
        layers = Divisible(L.Linear(6, 5), L.Linear(5, 4))
        stage = layers.divide(comm.rank, comm.rank + 1)
        with chainer_kernels.products(dtype):
            quiet(train_on, comm, [stage], [(x, t)], lr=0.0, n_microbatches=2)
        found[dtype] = {path: p.grad.copy() for path, p in stage.namedparams()}
    W = f"/{comm.rank}/W"
    assert not np.allclose(found["float32"][W], found["bfloat16"][W], 1e-4)
    if comm.rank == 1:
        # The loss's gradient is float32 in both.
        b = found["bfloat16"]["/1/b"]
        assert not np.array_equal(rounded(b), b)


def refuse_other_ranks(comm):
    dtype = ("float32", "bfloat16")[comm.rank]
    stage = model().divide(*[(0, 3), (3, 7)][comm.rank])
    with chainer_kernels.products(dtype), pytest.raises(DisagreementError) as caught:
        Pipeline(
            stage,
            comm,
            n_microbatches=2,
            lossfun=F.softmax_cross_entropy,
            timeout=20,
        )
    words = (
        "the dtype of products differs between rank 0 and rank 1:\nfloat32\nbfloat16"
    )
    assert words in str(caught.value)
    pipe = Pipeline(
        stage, comm, n_microbatches=2, lossfun=F.softmax_cross_entropy, timeout=20
    )
    x, t = make_batches([4], (3, 6, 6))[0]
    refused = pytest.raises(DisagreementError, match="others in float32; rank")
    with chainer_kernels.products(dtype), refused:
        quiet(pipe.step, x, t)


def test_on_two_ranks():
    assert_on_ranks(2, equal_a_serial_run)
    assert_on_ranks(2, round_operands)
    assert_on_ranks(2, refuse_other_ranks)


@pytest.fixture
def products_are_set_back():
    yield
    chainer_kernels.set_products("float32")


def made():
    stage = Divisible(L.Linear(3, 4))
    pipe = Pipeline(
        stage, MPI.COMM_SELF, n_microbatches=1, lossfun=F.softmax_cross_entropy
    )
    return pipe, set_up(stage, 0.1)


@pytest.mark.usefixtures("products_are_set_back")
def test_snapshot_keeps_the_dtype(tmp_path):
    pipe, optimizer = made()
    MixedPrecision(set_up(L.Linear(1, 1), 0.1), products="bfloat16")
    save_snapshot(tmp_path / "narrow", pipe, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        snapshot = load_snapshot(tmp_path / "narrow", pipe, optimizer)
    assert snapshot.versions["products"] == "bfloat16"
    chainer_kernels.set_products("float32")
    with pytest.warns(UserWarning, match="products in bfloat16, .* them in float32"):
        load_snapshot(tmp_path / "narrow", pipe, optimizer)
    save_snapshot(tmp_path / "single", pipe, optimizer)
    assert (
        "products" not in load_snapshot(tmp_path / "single", pipe, optimizer).versions
    )
    pipe.close()


@pytest.mark.usefixtures("products_are_set_back")
def test_mixed_precision_needs_no_scale():
    link = L.Linear(3, 2)
    optimizer = MixedPrecision(set_up(link, 0.1), products="bfloat16").setup(link)
    assert float(optimizer.loss_scale) == 1
    for products in (None, "float32"):
        usual = MixedPrecision(set_up(link, 0.1), products=products)
        assert float(usual.loss_scale) > 1
    with pytest.raises(ValueError, match="scale"):
        MixedPrecision(set_up(link, 0.1), products="bfloat16", loss_scale=-1)
    assert product_dtype.here() == "float32"
    chainer_kernels.set_products("bfloat16")
    before = link.W.array.copy()
    optimizer.update(lambda: F.sum(quiet(link, np.full((1, 3), 1.01, "f"))))
    np.testing.assert_array_equal(link.W.grad, np.float32(1.0078125))
    np.testing.assert_allclose(before - link.W.array, 0.10078125, 1e-5)
    with pytest.raises(ValueError, match="Give 'float32' or 'bfloat16'"):
        MixedPrecision(set_up(link, 0.1), products="fp16")


@pytest.mark.usefixtures("products_are_set_back")
@pytest.mark.parametrize("n_in", [3, None], ids=["sized", "sized later"])
def test_mixed_precision_of_float16_needs_a_scale(n_in):
    link = to_float16(L.Linear(n_in, 2))
    optimizer = MixedPrecision(chainer.optimizers.SGD(0.1), products="bfloat16")
    with pytest.raises(ValueError, match="/W is float16, .* loss_scale=Dynamic"):
        optimizer.setup(link)
    optimizer.loss_scale = 1
    assert optimizer.setup(link).target is link
    given = {"products": "bfloat16", "loss_scale": 128}
    MixedPrecision(chainer.optimizers.SGD(0.1), **given).setup(link)
