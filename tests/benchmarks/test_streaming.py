"""The parts of the benchmark that need no emulated host, on a small model."""

import pytest

from benchmarks import streaming


def test_trains_alike_and_measures():
    job = {"width": 32, "layers": 2, "steps": 3, "batch": 8, "rate": 0.1}
    resident, streamed = (
        streaming.work({**job, "segment": segment}) for segment in (None, 5)
    )
    assert streamed["losses"] == pytest.approx(resident["losses"], rel=1e-5)
    assert streamed["losses"][-1] < streamed["losses"][0]
    assert streaming.pointwise(True, 1024, 4, rows=256) > 0


def test_state_of_six_times_the_memory():
    memory, width = 300 * streaming.MIB, 4096
    n = streaming.n_linear(width, memory)
    assert (
        (n - 1) * 12 * width * (width + 1) < 6 * memory <= n * 12 * width * (width + 1)
    )
