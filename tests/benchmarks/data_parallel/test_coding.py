"""How fast gradients are coded."""

from benchmarks.data_parallel import coding
from divisible.communication.wire import WIRE


def test_every_wire_dtype_has_two_speeds(monkeypatch):
    monkeypatch.setattr(coding, "ELEMENTS", 2**21)
    found = coding.speeds(2**16, 2)
    assert list(found) == list(WIRE)
    # Elements per second, of any machine.
    assert all(1e6 < speed < 1e12 for speeds in found.values() for speed in speeds)
