"""The seconds of a loss, from moments that are told."""

from benchmarks.lost_rank import __main__ as benchmark


def moment(start, what, time, iteration=0):
    return {"start": start, "what": what, "time": time, "iteration": iteration}


def test_a_loss_ends_when_all_ranks_have_trained_the_next_minibatch():
    moments = [
        moment(0, "minibatch", 9.9, 5),
        moment(0, "minibatch", 10.0, 6),
        moment(0, "killed", 10.5, 6),
        moment(1, "begins", 14.0),
        moment(1, "begins", 15.0),
        moment(1, "minibatch", 17.0, 7),
        moment(1, "minibatch", 18.0, 7),
        moment(1, "minibatch", 30.0, 8),
    ]
    starts = [{"time": 1.0}, {"time": 11.0}]
    loss = benchmark.after(moments, starts, 1)
    assert loss == (0.5, 4.0, 3.0, 0)
    assert loss.seconds == 7.5
    again = [moment(1, "minibatch", 16.0, 6), *moments]
    assert benchmark.after(again, starts, 1) == (0.5, 4.0, 1.0, 1)
    assert benchmark.row(4, [loss, loss]).split()[:3] == ["4", "ranks", "0.50"]
