"""Old scripts run as they are, by a command or a variable of the environment."""

import os
import subprocess
import sys
import textwrap

import pytest

HAS_CUPY = subprocess.run(
    [sys.executable, "-c", "import cupy"], capture_output=True, timeout=100
).returncode == 0  # fmt: skip


def run(tmp_path, text, *options, environment=None, arguments=()):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    command = [*options, str(script), *arguments]
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONWARNINGS": "default", **(environment or {})},
    )


def done(result):
    assert result.returncode == 0, result.stderr
    return result


OLD_NAMES = """
    import sys
    import collections
    from fractions import gcd
    import xml.etree.cElementTree
    import numpy as np
    import numpy.compat
    from numpy.lib import pad
    assert __name__ == "__main__" and sys.path[0] == __file__.rpartition("/")[0]
    assert isinstance([], collections.Iterable) and gcd(4, 6) == 2
    assert np.float is float and np.NINF == -np.inf and np.dtype("int0") == np.intp
    assert pad([1], 1, "constant").tolist() == [0, 1, 0]
    print(sys.argv[1:])
"""


def test_removed_names_come_back_at_their_first_use(tmp_path):
    command = "-m", "chainer_compat", "run"
    result = done(run(tmp_path, OLD_NAMES, *command, arguments=["--gpu", "-1"]))
    assert result.stdout == "['--gpu', '-1']\n"
    told = [line for line in result.stderr.splitlines() if "this script uses" in line]
    assert len(told) == 2 and "script.py:4" in told[0]
    assert "collections.Iterable" in told[0] or "fractions.gcd" in told[0]


IN_THREADS = """
    import threading
    import numpy as np
    from chainer_compat import _numpy_aliases

    give, has_begun, may_end = (
        _numpy_aliases.enable, threading.Event(), threading.Event()
    )

    def slow():
        has_begun.set()
        may_end.wait(60)
        return give()

    _numpy_aliases.enable = slow
    found = {}

    def use(name):
        found[name] = getattr(np, name, None)

    def take():
        import numpy.compat
        found["compat"] = numpy.compat.long

    threads = [
        threading.Thread(target=use, args=("float",)),
        threading.Thread(target=use, args=("int",)),
        threading.Thread(target=take),
    ]
    for thread in threads:
        thread.start()
        has_begun.wait(60)
    for thread in threads[1:]:
        thread.join(0.2)
    may_end.set()
    for thread in threads:
        thread.join()
    assert found == {"float": float, "int": int, "compat": int}, found
    assert not hasattr(np, "no such name")
"""


def test_threads_that_use_removed_names_at_once_wait_for_each_other(tmp_path):
    done(run(tmp_path, IN_THREADS, environment={"CHAINER_COMPAT": "names"}))


def test_the_environment_does_the_same(tmp_path):
    result = run(tmp_path, OLD_NAMES, environment={"CHAINER_COMPAT": "names"})
    assert "this script uses" in done(result).stderr
    assert run(tmp_path, OLD_NAMES).returncode == 1


def test_a_script_that_uses_none_of_it_gets_no_warning(tmp_path):
    text = """
        import numpy, collections, chainer
        assert not hasattr(numpy, "never") and not hasattr(collections, "never")
        assert not chainer.backends.cuda.available
        print(numpy.zeros(2, float).sum())
    """
    command = "-m", "chainer_compat", "run"
    result = done(run(tmp_path, text, *command))
    assert result.stdout == "0.0\n" and "chainer_compat" not in result.stderr


def test_an_unknown_mode_is_refused(tmp_path):
    result = run(tmp_path, "", "-m", "chainer_compat", "run", "--compat", "nams")
    assert result.returncode == 2 and "no mode 'nams'" in result.stderr
    result = done(run(tmp_path, "import chainer", environment={"CHAINER_COMPAT": "a"}))
    assert "no mode 'a'" in result.stderr and "Nothing was turned on" in result.stderr


def test_errors_of_the_script_are_its_own(tmp_path):
    result = run(tmp_path, "1 / 0", "-m", "chainer_compat", "run")
    assert result.returncode == 1 and "ZeroDivisionError" in result.stderr


NO_CUPY = """
    import numpy as np
    import cupy
    import cupy as cp
    from cupy import cuda
    kernel = cupy.ElementwiseKernel("T x", "T y", "y = x", "name")
    @cp.fuse()
    def fused(x): return x
    import chainer
    from chainer import links as L
    assert not chainer.backends.cuda.available and not cuda.is_available()
    x = np.ones((2, 3), "f")
    assert cupy.get_array_module(x) is np and not isinstance(x, cupy.ndarray)
    assert L.Linear(3, 2)(cp.asnumpy(x)).shape == (2, 2)
    for use in (lambda: cupy.zeros(3), lambda: kernel(x), lambda: fused(x),
                lambda: cuda.Device(0).use(), lambda: cupy.random.seed(0)):
        try:
            use()
        except RuntimeError as error:
            assert "no GPU can be used" in str(error), error
        else:
            raise AssertionError(use)
    import cupy.core
    assert cupy.core.core.ndarray is cupy.core.ndarray is cupy.ndarray
    try:
        import cupy.cuda.cudnn
    except ImportError as error:
        assert "no GPU can be used" in str(error), error
    else:
        raise AssertionError
    print("done")
"""


@pytest.mark.skipif(HAS_CUPY, reason="CuPy is here")
def test_a_stand_in_for_cupy_names_the_cause(tmp_path):
    result = done(run(tmp_path, NO_CUPY, "-m", "chainer_compat", "run"))
    assert result.stdout == "done\n"
    assert result.stderr.count("gave it a stand-in") == 1
    assert "script.py:3" in result.stderr


ON_CPU = """
    import numpy as np
    import cupy
    import chainer
    from chainer import cuda, links as L
    xp = cuda.cupy
    chainer.cuda.check_cuda_available()
    cuda.get_device_from_id(0).use()
    with cuda.get_device(1):
        pass
    cupy.cuda.Device(0).use()
    assert xp.zeros((2, 3), dtype="f").sum() == 0 and cupy.arange(3)[1] == 1
    cupy.random.seed(3)
    drawn = np.random.rand()
    np.random.seed(3)
    assert np.random.rand() == drawn
    x = np.ones((2, 3), "f")
    on_gpu = cuda.to_gpu(x)
    x[:] = 2
    assert on_gpu.max() == 1 and cuda.to_gpu([x, None], device=0)[1] is None
    try:
        cuda.to_gpu("x")
    except TypeError as error:
        assert "must be an array" in str(error)
    class Own(L.Linear):
        def to_gpu(self, device=None):
            super().to_gpu(device)
            self.moved = True
            return self
    net = chainer.Chain()
    with net.init_scope():
        net.own = Own(3, 2)
    assert net.to_gpu() is net and net.own.moved and net.xp is np
    chainer.Variable(x).to_gpu(0)
    net.own.W.to_gpu()
    devices = [chainer.get_device(each) for each in ("@cupy:0", 0, "@numpy")]
    assert devices[0] == devices[1] == devices[2]
    data = chainer.datasets.TupleDataset(x, np.zeros(2, "i"))
    model = L.Classifier(net.own)
    optimizer = chainer.optimizers.SGD().setup(model)
    updater = chainer.training.StandardUpdater(
        chainer.iterators.SerialIterator(data, 2), optimizer, device=0
    )
    updater.update()
    assert updater.device == chainer.get_device(-1)
    try:
        cupy.ElementwiseKernel("T x", "T y", "y = x", "name")(x)
    except RuntimeError as error:
        assert "no GPU can be used" in str(error)
    else:
        raise AssertionError
    print("done", cuda.available)
"""


@pytest.mark.skipif(HAS_CUPY, reason="CuPy is here")
def test_the_cpu_takes_the_place_of_gpus_on_request(tmp_path):
    command = "-m", "chainer_compat", "run", "--compat"
    result = done(run(tmp_path, ON_CPU, *command, "names,cupy,cpu"))
    assert result.stdout == "done False\n"
    assert result.stderr.count("the CPU takes its place") == 1
    assert run(tmp_path, ON_CPU, *command, "names,cupy").returncode == 1


GUARDED = """
    import importlib.util
    try:
        import cupy
    except ImportError:
        cupy = None
    assert cupy is None and importlib.util.find_spec("cupy") is None
    import chainer
    print(chainer.backends.cuda.available)
"""


@pytest.mark.skipif(HAS_CUPY, reason="CuPy is here")
def test_a_script_that_expects_no_cupy_gets_none(tmp_path):
    result = done(run(tmp_path, GUARDED, "-m", "chainer_compat", "run"))
    assert result.stdout == "False\n" and "stand-in" not in result.stderr


CUPY = {
    "cupy/__init__.py": "__version__ = '{version}'\n",
    "cupy/_core/__init__.py": "from cupy._core import core\nname = 'core'\n",
    "cupy/_core/core.py": "ndarray = int\n",
    "cupy/cuda/__init__.py": "",
    "cupy_backends/__init__.py": "",
    "cupy_backends/cuda/__init__.py": "",
    "cupy_backends/cuda/libs/__init__.py": "",
}
RENAMED = """
    import cupy.core, cupy._core
    from cupy.core import core
    import cupy.core.core
    assert cupy.core is cupy._core and core.ndarray is int
    assert cupy.core.__spec__.name == "cupy._core"
    try:
        from cupy.cuda import cudnn
        print("cudnn", cudnn.version)
    except ImportError as error:
        print(error)
"""


@pytest.mark.parametrize("version, said", [("13.1", "cudnn 8\n"), ("14.0", "below 14")])
def test_former_names_of_cupy(tmp_path, version, said):
    files = dict(CUPY)
    if version == "13.1":
        files["cupy_backends/cuda/libs/cudnn.py"] = "version = 8\n"
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(version=version))
    result = done(run(tmp_path, RENAMED, "-m", "chainer_compat", "run"))
    assert said in result.stdout
    assert result.stderr.count("imports cupy.core") == 1
