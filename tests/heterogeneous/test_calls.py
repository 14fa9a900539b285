"""A call that ends in the middle."""

import pytest
from mpi4py import MPI

from divisible.communication.busy import is_busy
from divisible.communication.errors import DisagreementError
from heterogeneous.calls import Calls, Refused


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("a layer's")])
def test_its_words_meet_no_other_network(error):
    comm = MPI.COMM_SELF.Dup()
    calls = Calls(comm, 5.0)
    with pytest.raises(type(error)), calls.guarded():
        calls.begin("step", ["8 samples"], None)
        raise error
    assert is_busy(comm)


@pytest.mark.parametrize("error", [Refused(ValueError("x")), DisagreementError("x")])
def test_nothing_is_under_way_where_all_ranks_refuse(error):
    comm = MPI.COMM_SELF.Dup()
    with pytest.raises((ValueError, DisagreementError)), Calls(comm, 5.0).guarded():
        raise error
    assert not is_busy(comm)
    comm.Free()
