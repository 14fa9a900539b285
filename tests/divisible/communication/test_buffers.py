import numpy as np

from divisible.communication import buffers


def test_numpy_arrays_are_sent_where_they_are():
    host = buffers.create_buffers(np)
    array = np.arange(6.0).reshape(2, 3)
    assert host.outgoing(array) is array
    assert host.incoming(array) is array
    assert host.outgoing(array.T).flags.c_contiguous


def test_the_mpi_library_is_asked_for_device_memory():
    # The libraries of the test environment are built without CUDA.
    assert buffers.mpi_takes_device_memory() is False
