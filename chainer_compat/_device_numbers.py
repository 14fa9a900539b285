"""Devices that are compared with numbers, as until Chainer 5.

::

    def convert(batch, device):
        if device >= 0:             # updater.device was 0, and is a GpuDevice today
            ...

    xp = numpy if updater.device == -1 else cupy

An updater's ``device`` was the number of a GPU, or -1 for a CPU. Both are compared here
as these numbers. ``chainer.dataset`` still calls converters with numbers.
"""

import numbers
import operator

from chainer_compat._warned import tell

_ORDERS = {
    "__lt__": operator.lt,
    "__le__": operator.le,
    "__gt__": operator.gt,
    "__ge__": operator.ge,
}
# Modules of the devices that define their equality.
_CLASSES = {"chainer.backends._cpu": "CpuDevice", "chainer.backends.cuda": "GpuDevice"}


def loaded(module) -> None:
    """Adds the comparisons to Chainer's devices, when their module was loaded."""
    if module.__name__ == "chainer._backend":
        for name, compare in _ORDERS.items():
            setattr(module.Device, name, _comparison(compare))
    elif module.__name__ in _CLASSES:
        cls = getattr(module, _CLASSES[module.__name__])
        cls.__eq__ = _equality(cls.__eq__)


def _comparison(compare):
    def method(self, other):
        number = _number(self) if isinstance(other, numbers.Real) else None
        if number is None:
            return NotImplemented
        _tell(self, number, other)
        return compare(number, other)

    return method


def _equality(original):
    def method(self, other):
        if not isinstance(other, numbers.Integral):
            return original(self, other)
        number = _number(self)
        _tell(self, number, other)
        return number == other

    return method


def _tell(device, number, other) -> None:
    tell(
        "devices",
        f"this script compares the device {device} with {other}. It is {number} there,"
        " as in Chainer 5: device.xp is numpy on a CPU",
    )


def _number(device):
    """Returns the number that a device had, or None if it had none."""
    import chainer

    if isinstance(device, chainer.backend.GpuDevice):
        return device.device.id
    return -1 if isinstance(device, chainer.backend.CpuDevice) else None
