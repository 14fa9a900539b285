"""Names that Chainer's modules imported once, and devices compared with numbers."""

import importlib.util

import pytest

from chainer_compat._passed_on import PASSED_ON
from tests.chainer_compat.test_scripts import done, run

NAMES = """
    from chainer.links.connection.linear import functools, operator
    from chainer.functions.activation.relu import cuda
    import chainer.functions.activation.relu as relu
    import chainer.functions as F
    import functools as own
    assert functools is own and operator.mul(2, 3) == 6
    assert cuda is relu.chainer.backends.cuda
    for module, name in (relu, "functool"), (F, "warnings"), (relu, "__wrapped__"):
        try:
            getattr(module, name)
        except AttributeError as error:
            assert name in str(error)
        else:
            raise AssertionError(name)
    print("done")
"""


def test_modules_within_modules_come_back(tmp_path):
    result = done(run(tmp_path, NAMES, "-m", "chainer_compat", "run"))
    assert result.stdout == "done\n"
    (told,) = [line for line in result.stderr.splitlines() if "this script" in line]
    assert "script.py:2" in told and "write import functools" in told
    plain = run(tmp_path, NAMES)
    assert plain.returncode == 1 and "cannot import name 'functools'" in plain.stderr


@pytest.mark.parametrize("module", PASSED_ON.values())
def test_each_stands_for_a_module(module):
    assert importlib.util.find_spec(module)


DEVICES = """
    import numpy as np
    import chainer
    from chainer import training

    def convert(batch, device):
        sent = chainer.backends.cuda.to_gpu if device >= 0 else np.asarray
        assert device < 0 and device <= -1 and not device > -1 and 0 > device
        return sent(batch)

    class Updater(training.StandardUpdater):
        def update_core(self):
            x = self.converter(self.get_iterator("main").next(), self.device)
            self.get_optimizer("main").update(lambda: chainer.functions.sum(model(x)))

    model = chainer.links.Linear(2, 1)
    optimizer = chainer.optimizers.SGD().setup(model)
    data = chainer.iterators.SerialIterator(np.ones((4, 2), "f"), 2)
    updater = Updater(data, optimizer, converter=convert, device=-1)
    updater.update()
    assert updater.device == -1 and updater.device != 0 and hash(updater.device)
    try:
        updater.device < "a"
    except TypeError:
        print("done", updater.device == chainer.get_device("@numpy"))
"""


def test_a_device_is_compared_with_numbers(tmp_path):
    result = done(run(tmp_path, DEVICES, "-m", "chainer_compat", "run"))
    assert result.stdout == "done True\n"
    assert result.stderr.count("this script compares the device @numpy") == 1
    plain = run(tmp_path, DEVICES)
    assert plain.returncode == 1 and "'CpuDevice' and 'int'" in plain.stderr
