"""The messages that a rank sends in a step, from its flight record."""

from divisible.communication.flight_record import BEGIN, SEND, own_flight_record


def sent_in_a_step(pipe, x, t):
    """Returns the texts of this rank's messages in the second step of a pipeline.

    Before the first step, ranks pass a few samples on besides.
    """
    pipe.step(x, t)
    before = own_flight_record.log().entries[-1].number
    pipe.step(x, t)
    return [
        entry.text
        for entry in own_flight_record.log().entries
        if entry.number > before and (entry.kind, entry.phase) == (SEND, BEGIN)
    ]
