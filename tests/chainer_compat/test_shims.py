"""What each shim repairs, shown by the Chainer function that needs it."""

import io
import subprocess
import sys
import threading
import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_environment_check_is_silent():
    from chainer import _environment_check

    _environment_check.check()
    assert not hasattr(_environment_check, "pkg_resources")


def test_testing_requirements():
    pytest.importorskip("scipy")
    import chainer.testing

    def skips(decorator):
        return getattr(decorator(lambda: None), "__unittest_skip__", False)

    assert not skips(chainer.testing.with_requires("scipy>=0.19"))
    assert skips(chainer.testing.with_requires("scipy>=999"))
    assert skips(chainer.testing.without_requires("scipy"))


def test_doctest_requirements():
    from chainer.testing import doctest_helper

    assert doctest_helper.skipif_requires_satisfied("numpy>=1.10")
    assert not doctest_helper.skipif_requires_satisfied("numpy>=999")


def test_experimental_warnings_only_of_users():
    chainer.utils.experimental("chainermn.functions.bcast")
    with pytest.warns(FutureWarning, match="mine.f is experimental"):
        chainer.utils.experimental("mine.f")


def test_multiprocess_iterator():
    iterator = chainer.iterators.MultiprocessIterator(
        list(range(6)), 3, shuffle=False, n_processes=1
    )
    with warnings.catch_warnings():
        # Python 3.12 warns of fork in a process with threads, such as pytest's.
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
        assert [iterator.next(), iterator.next()] == [[0, 1, 2], [3, 4, 5]]
        threads = [t for t in threading.enumerate() if t.name == "prefetch_loop"]
        assert threads and all(thread.daemon for thread in threads)
        iterator.finalize()


def test_hdf5_strings(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("text", data="epoch")
    with h5py.File(tmp_path / "f.h5", "r") as file:
        assert chainer.serializers.HDF5Deserializer(file)("text", "") == "epoch"


def test_as_strided_gradient():
    x = chainer.Variable(np.arange(6, dtype="f"))
    y = F.as_strided(x, (4, 3), (1, 1))
    F.sum(y).backward()
    np.testing.assert_array_equal(x.grad, [1, 2, 3, 3, 2, 1])


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_resize_images(mode, align_corners):
    x = chainer.Variable(np.arange(16, dtype="f").reshape(1, 1, 4, 4))
    y = F.resize_images(x, (8, 8), mode=mode, align_corners=align_corners)
    F.sum(y).backward()
    assert y.shape == (1, 1, 8, 8)
    assert y.dtype == x.grad.dtype == np.float32
    assert x.grad.sum() == pytest.approx(64)


def test_categorical_log_prob():
    p = np.array([[0.25, 0.75], [0.5, 0.5]], "f")
    log_prob = chainer.distributions.Categorical(p=p).log_prob(np.array([1, 0]))
    np.testing.assert_allclose(log_prob.array, np.log([0.75, 0.5]), rtol=1e-6)


def test_debug_print_names_the_cpu():
    text = chainer.Variable(np.zeros(2, "f"), name="x").debug_print()
    assert "- device: CPU\n" in text


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int32", "float16"])
def test_pad_sequence(dtype):
    xs = [np.ones(1, dtype), np.ones(3, dtype)]
    y = F.pad_sequence(xs, padding=-1).array
    assert y.dtype == dtype
    np.testing.assert_array_equal(y[0], np.array([1, -1, -1]).astype(dtype))


def test_sparse_matmul_float16():
    sparse = pytest.importorskip("scipy.sparse")
    a = np.array([[1, 0], [0.5, 2]], "f")
    b = np.array([[1, 2], [3, 4]], "e")
    m = sparse.coo_matrix(a)
    coo = chainer.utils.CooMatrix(
        m.data.astype("e"), m.row, m.col, m.shape, requires_grad=True
    )
    y = F.sparse_matmul(coo, chainer.Variable(b))
    assert y.dtype == np.float16
    np.testing.assert_allclose(y.array, a @ b)
    F.sum(y).backward()
    assert coo.data.grad.dtype == np.float16


def test_fix():
    x = np.array([-1.5, 1.5, 0.2], "f")
    np.testing.assert_array_equal(F.fix(x).array, [-1, 1, 0])
    divisor = chainer.Variable(np.array([1, 1, 1], "f"))
    F.sum(F.fmod(chainer.Variable(x), divisor)).backward()
    np.testing.assert_array_equal(divisor.grad, [1, -1, 0])


@pytest.mark.parametrize(
    "t, expected",
    [
        (np.zeros((3, 1), np.int32), r"t.ndim == x.ndim - 1\nActual: 2 != 1"),
        (np.zeros(2, np.int64), r"x.shape\[0\] == t.shape\[0\]\nActual: 3 != 2"),
        (np.zeros((3, 1), "f"), r"x.shape == t.shape\nActual: \(3, 4\) != \(3, 1\)"),
        (np.zeros(3, np.uint8), "t.dtype.kind == f\nActual: u != f"),
    ],
)
def test_softmax_cross_entropy_says_what_it_expects(t, expected):
    with pytest.raises(chainer.utils.type_check.InvalidType, match=expected):
        F.softmax_cross_entropy(np.zeros((3, 4), "f"), t)


def test_concat_examples_with_padding():
    batch = [np.ones((1, 2), "f"), np.ones((2, 1), "f")]
    y = chainer.dataset.concat_examples(batch, padding=-1)
    np.testing.assert_array_equal(y[0], [[1, 1], [-1, -1]])
    np.testing.assert_array_equal(y[1], [[1, -1], [1, -1]])


def test_concat_examples_of_an_array():
    batch = np.arange(6, dtype=np.float32).reshape(3, 2)
    found = chainer.dataset.concat_examples(batch)
    assert (found == batch).all() and found.dtype == np.float32
    for empty in batch[:0], [], None:
        with pytest.raises(ValueError, match="batch is empty"):
            chainer.dataset.concat_examples(empty)


def test_maxout_with_functions_as_initializers():
    shapes = []

    def count_up(array):
        shapes.append(array.shape)
        array[...] = np.arange(array.size).reshape(array.shape)

    link = L.Maxout(3, 2, 4, initialW=count_up, initial_bias=count_up)
    assert shapes == [(2, 4, 3), (2, 4)]
    np.testing.assert_array_equal(link.linear.W.array.ravel(), np.arange(24))
    np.testing.assert_array_equal(link.linear.b.array, np.arange(8))


def test_caffe_messages():
    pytest.importorskip("google.protobuf")
    from chainer.links.caffe import caffe_function
    from chainer.links.caffe.protobuf3 import caffe_pb2

    assert (caffe_pb2.TRAIN, caffe_pb2.Phase.Name(1)) == (0, "TEST")
    assert caffe_pb2.V1LayerParameter.CONVOLUTION == 4
    net = caffe_pb2.NetParameter(name="net")
    net.layer.add(name="linear", type="InnerProduct").blobs.add(data=[1, 2])
    again = caffe_pb2.NetParameter.FromString(net.SerializeToString())
    assert again.layer[0].blobs[0].data[:] == [1, 2]
    assert caffe_function.caffe_pb is caffe_pb2


def test_caffe_round_trip(tmp_path):
    pytest.importorskip("google.protobuf")
    from chainer.exporters import caffe

    class Net(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.linear = L.Linear(3, 2)

        def forward(self, x):
            return F.relu(self.linear(x))

    net, x = Net(), np.random.rand(1, 3).astype("f")
    caffe.export(net, [chainer.Variable(x)], str(tmp_path), True)
    function = L.caffe.CaffeFunction(str(tmp_path / "chainer_model.caffemodel"))
    assert function["LinearFunction-0-1"].W.shape == (2, 3)


def test_snapshot_round_trip():
    model, other = L.Linear(3, 2), L.Linear(3, 2)
    file = io.BytesIO()
    chainer.serializers.save_npz(file, model)
    file.seek(0)
    chainer.serializers.load_npz(file, other)
    np.testing.assert_array_equal(model.W.array, other.W.array)


def test_mnist_comes_from_a_server_that_has_it(monkeypatch, tmp_path):
    urls = []

    def download(url):
        urls.append(url)
        raise OSError("no network")

    monkeypatch.setattr(chainer.dataset.download, "_dataset_root", str(tmp_path))
    monkeypatch.setattr(chainer.dataset.download, "cached_download", download)
    with pytest.raises(OSError, match="no network"):
        chainer.datasets.get_mnist()
    assert urls == [
        "https://ossci-datasets.s3.amazonaws.com/mnist/train-images-idx3-ubyte.gz"
    ]


@pytest.mark.parametrize("device", ["@cupy:0", 0])
def test_a_gpu_without_cupy_says_what_to_install(device):
    if chainer.backends.cuda.available:
        pytest.skip("CuPy is installed")
    with pytest.raises(
        RuntimeError, match=r'pip install "cupy-cuda12x\[ctk\]"'
    ) as info:
        chainer.get_device(device)
    assert "http" not in str(info.value)
    assert "No module named 'cupy'" in str(info.value)


WITHOUT_ONNX = """
import sys
sys.modules["onnx"] = None
import numpy, onnx_chainer, chainer.links as L
for export in (
    lambda *arguments: onnx_chainer.export(*arguments),
    lambda *arguments: onnx_chainer.export_testcase(*arguments, "nowhere"),
):
    try:
        export(L.Linear(2, 2), numpy.zeros((1, 2), "f"))
    except ImportError as error:
        print(" ".join(str(error).split()))
"""


def test_an_export_without_onnx_says_what_to_install(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ONNX],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    line = (
        "onnx cannot be imported (import of onnx halted; None in sys.modules)."
        " Exporting a model in ONNX format needs it. $ pip install 'onnx>=1.16'"
    )
    assert (done.stdout.splitlines(), done.stderr) == ([line, line], "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [(), (lambda: None,)])
def test_an_optimizer_that_is_not_set_up_says_so(arguments):
    with pytest.raises(RuntimeError, match=r"call optimizer.setup\(model\) before"):
        chainer.optimizers.Adam().update(*arguments)
