"""Questions of ranks that wait in vain, on one process."""

from mpi4py import MPI

from divisible.communication.flight_record import EVERYBODY
from divisible.communication.tags import ANSWER_TAG
from divisible.communication.wait_queries import WaitPlace, WaitQueries


def test_a_question_over_a_communicator_that_was_freed_is_left_alone(monkeypatch):
    """MPI may give its number, and what nobody has heard, to one with fewer ranks."""
    comm = MPI.COMM_SELF.Dup()
    asked = WaitQueries(comm)
    place = WaitPlace(comm, EVERYBODY)
    question = asked._here("what rank 1 sends", place)
    told = []
    monkeypatch.setattr(asked, "_tell", lambda rank, tag, _: told.append((rank, tag)))
    monkeypatch.setattr(
        asked, "_heard", lambda tag: iter([(2, question), (0, question)])
    )
    asked.answer("to save", place)
    assert told == [(0, ANSWER_TAG)]
    comm.Free()
