"""The CPU in place of GPUs, for scripts that always ask for one.

::

    cuda.get_device_from_id(0).use()                nothing happens
    model.to_gpu()                                  the model stays where it is
    cuda.to_gpu(x)                                  a copy of x
    StandardUpdater(..., device=0)                  as device=-1
    chainer.get_device('@cupy:0')                   as '@numpy'
    xp = cuda.cupy; xp.zeros(3)                     numpy.zeros(3)
    import cupy; cupy.random.seed(0)                numpy.random.seed(0)
    cupy.ElementwiseKernel(...)(x)                  an error: there is no GPU here

This counts where CuPy is not installed. One warning says so at its first use.
"""

import functools
import operator

import chainer_compat
from chainer_compat import _no_cupy
from chainer_compat._warned import tell


def enable() -> None:
    """Puts the CPU in place of GPUs when Chainer's modules are loaded."""
    chainer_compat.plug_in("chainer_compat._gpus_on_cpu")
    _no_cupy.enable_numpy(_of_numpy)


def loaded(module) -> None:
    """Changes a module of Chainer that was loaded."""
    change = _CHANGES.get(module.__name__)
    if change is not None:
        change(module)


class NoDevice:
    """The device that a script chooses, and that is not there.

    Args:
        number (int): Its number, which has no effect.
    """

    id = -1

    def __init__(self, number=None) -> None:
        self.use()

    def use(self) -> None:
        """Does nothing."""
        _tell("a device of cupy")

    def synchronize(self) -> None:
        """Does nothing."""

    def __enter__(self):
        return self

    def __exit__(self, *args) -> None:
        pass


def _of_numpy(name):
    """Returns what stands for a name of CuPy, such as ``cupy.random.seed``.

    Raises:
        AttributeError: If NumPy has no such name.
    """
    import numpy

    if name == "cupy.cuda.Device":
        return NoDevice
    found = operator.attrgetter(name.partition(".")[2])(numpy)
    _tell(name)
    return found


def _tell(what) -> None:
    tell(
        "GPU",
        f"this script uses a GPU ({what}), and CuPy is not installed: the CPU takes its"
        " place, as the mode cpu of chainer_compat says. It is many times slower",
    )


def _change_cuda(cuda) -> None:
    """Changes ``chainer.backends.cuda``, if there is no CuPy."""
    if cuda.available:
        return

    from_id = cuda.get_device_from_id
    convert = cuda._backend._convert_arrays

    @functools.wraps(from_id)
    def get_device_from_id(device_id):
        if device_id is None or device_id < 0:
            return from_id(device_id)
        _tell(f"get_device_from_id({device_id})")
        return cuda.DummyDevice

    def get_cuda_device(*args):
        if any(isinstance(arg, cuda._integer_types) for arg in args):
            _tell(f"get_device({', '.join(map(str, args))})")
        return cuda.DummyDevice

    def from_device_id(device_id):
        _tell(f"the device {device_id}")
        return cuda._cpu.CpuDevice()

    @functools.wraps(cuda.to_gpu)
    def to_gpu(array, device=None, stream=None):
        _tell("to_gpu")
        return convert(array, _copied)

    def check_cuda_available():
        _tell("check_cuda_available")

    cuda.get_device_from_id = get_device_from_id
    cuda._get_cuda_device = get_cuda_device
    cuda.GpuDevice.from_device_id = staticmethod(from_device_id)
    cuda.to_gpu = to_gpu
    cuda.check_cuda_available = check_cuda_available
    cuda.cupy = _no_cupy.stand_in()


def _copied(array):
    """Returns a copy of an array, as a GPU would have."""
    import numpy

    if array is None:
        return None
    if not isinstance(array, (numpy.ndarray, numpy.number, numpy.bool_)):
        raise TypeError(
            "The array sent to gpu must be an array or a NumPy scalar."
            f"\nActual type: {type(array)}."
        )
    return numpy.array(array)


def _change_residents(module) -> None:
    """Leaves links where they are; methods ``to_gpu`` of a script's own are called."""
    if module.cuda.available:
        return
    original = module.DeviceResident.to_gpu

    @functools.wraps(original)
    def to_gpu(self, device=None):
        _tell("to_gpu")
        visitor = module._ToDeviceVisitor(
            module.backend.CpuDevice(),
            entry_method_info=("to_gpu", {"device": device}),
            starting_device_resident=self,
        )
        self._DeviceResident__to_device(visitor)
        return self

    module.DeviceResident.to_gpu = to_gpu


def _change_variables(module) -> None:
    """Leaves variables and parameters where they are."""
    if module.cuda.available:
        return
    for cls in (module.Variable, module.Parameter):

        @functools.wraps(cls.to_gpu)
        def to_gpu(self, device=None):
            _tell("to_gpu")

        cls.to_gpu = to_gpu


_CHANGES = {
    "chainer.backends.cuda": _change_cuda,
    "chainer.device_resident": _change_residents,
    "chainer.variable": _change_variables,
}
