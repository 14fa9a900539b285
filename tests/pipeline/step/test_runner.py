"""The order of things on one rank, with a transport that only takes notes."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible
from divisible.communication.errors import DisagreementError, StallError
from divisible.communication.signatures import Tensor
from divisible.schedules import interleaved, one_f_one_b, zero_bubble_h1, zero_bubble_h2
from divisible.schedules.rank_program import RECEIVES_AHEAD, RankProgram
from pipeline.stages.loss import Loss
from pipeline.stages.stage import Stage
from pipeline.step.action_error import ActionError
from pipeline.step.runner import Runner

N_MICROBATCHES = 4


class Channel:
    def __init__(self, notes, name, answer):
        self._notes, self._name, self._answer = notes, name, answer

    def post(self, microbatch):
        self._notes.append(("post", self._name, microbatch))

    def receive(self, microbatch, waiting):
        self._notes.append(("receive", self._name, microbatch, waiting))
        return self._answer(microbatch)

    def send(self, microbatch, message):
        self._notes.append(("send", self._name, microbatch))
        assert all(isinstance(tensor, Tensor) for tensor in message)


class Notes(list):
    """A transport whose other end answers at once."""

    rendezvous = False

    def __init__(self, answer):
        self._answer = answer
        self.n_looks = 0

    def look(self):
        self.n_looks += 1

    def sender(self, channel, peer):
        return Channel(self, (channel, peer), self._answer)

    receiver = sender

    def flush(self, peers=None):
        self.append(("flush",))


def first_rank(answer=lambda i: (Tensor(np.ones((2, 3), np.float32)),), layers=None):
    """Rank 0 of two, with one stage."""
    notes = Notes(answer)
    stage = Stage(layers or Divisible(L.Linear(4, 3)))
    stage.begin(0)
    return Runner({0: stage}, [0, 1], 0, notes), notes


INPUTS = [(Tensor(np.ones((2, 4), np.float32)),) for _ in range(N_MICROBATCHES)]


def run(runner, schedule):
    return runner.run(RankProgram.of(schedule, 0, rendezvous=False), INPUTS)


def of(notes, kind):
    return [note[2] for note in notes if note[0] == kind]


@pytest.mark.parametrize("make", [one_f_one_b, zero_bubble_h1, zero_bubble_h2])
def test_every_result_is_sent_and_every_gradient_received(make):
    runner, notes = first_rank()
    schedule = make(2, N_MICROBATCHES)
    assert run(runner, schedule) == []
    for kind in ("send", "post", "receive"):
        assert of(notes, kind) == list(range(N_MICROBATCHES))
    assert notes[-1] == ("flush",)
    # Channel 1 goes forward between the stages 0 and 1, channel 0 backward.
    assert {note[1] for note in notes if note[0] == "send"} == {(1, 1)}
    assert {note[1] for note in notes if note[0] == "receive"} == {(0, 1)}
    waiting = {note[3][:2] for note in notes if note[0] == "receive"}
    assert waiting == {"0B" if make is one_f_one_b else "0I"}


def test_receives_are_posted_ahead():
    _, notes = run_1f1b()
    assert notes[:RECEIVES_AHEAD] == [("post", (0, 1), i) for i in range(2)]
    for i, note in enumerate(notes):
        if note[0] == "receive":
            posted = len(of(notes[:i], "post"))
            assert posted == min(note[2] + RECEIVES_AHEAD, N_MICROBATCHES)


def run_1f1b():
    runner, notes = first_rank()
    run(runner, one_f_one_b(2, N_MICROBATCHES))
    return runner, notes


@pytest.mark.parametrize("make", [one_f_one_b, zero_bubble_h1, zero_bubble_h2])
def test_looks_at_messages_between_the_layers(make):
    layers = Divisible(L.Linear(4, 4), F.relu, L.Linear(4, 4), F.relu, L.Linear(4, 3))
    runner, notes = first_rank(layers=layers)
    run(runner, make(2, N_MICROBATCHES))
    # After each function, forward and backward; nobody else's functions are seen.
    assert notes.n_looks >= 2 * 5 * N_MICROBATCHES
    assert not chainer.get_function_hooks()


def test_record_has_two_times_for_each_operation():
    runner, _ = run_1f1b()
    times = runner.record.times
    assert len(times) == 2 * len(runner.record.program.operations)
    assert times == sorted(times)


def test_one_rank_needs_no_messages():
    notes = Notes(None)
    loss = Loss(F.softmax_cross_entropy, None)
    first, last = Divisible(L.Linear(4, 5)), Divisible(L.Linear(5, 3))
    runner = Runner({0: Stage(first), 1: Stage(last, loss)}, [0, 0], 0, notes)
    targets = [(np.zeros(2, np.int32),)] * N_MICROBATCHES
    loss.start(targets)
    assert run(runner, interleaved(1, 2, N_MICROBATCHES)) == [()] * N_MICROBATCHES
    # Outputs are handed out for predictions, when no loss uses them.
    loss.start(None)
    outputs = run(runner, interleaved(1, 2, N_MICROBATCHES).forward_only())
    assert [y.array.shape for (y,) in outputs] == [(2, 3)] * N_MICROBATCHES
    assert notes == []


def test_an_error_says_where():
    def spill(x):
        raise ArithmeticError("it spills")

    model = Divisible(F.relu, L.Linear(4, 4), spill, F.tanh)
    runner, _ = first_rank(layers=model.divide(1, 4))
    message = (
        r"0F0 failed on rank 0 \(forward of microbatch 0, stage 0 with the layers 1 to"
        r" 3\), in layer 2, .*spill: ArithmeticError: it spills"
    )
    with pytest.raises(ActionError, match=message) as caught:
        run(runner, one_f_one_b(2, N_MICROBATCHES))
    assert isinstance(caught.value.__cause__, ArithmeticError)


def test_an_error_names_a_layer_of_several_links_in_a_line():
    chain = chainer.Sequential(L.Linear(4, 4), lambda x: x / [1])
    runner, _ = first_rank(layers=Divisible(F.relu, chain, F.tanh).divide(0, 2))
    with pytest.raises(ActionError, match=r"in layer 1, Sequential: TypeError: "):
        run(runner, one_f_one_b(2, N_MICROBATCHES))


@pytest.mark.parametrize("error", [StallError, DisagreementError])
def test_what_other_ranks_do_wrong_is_no_error_of_a_layer(error):
    """It is seen while this one computes, between the functions of a layer."""

    def look():
        raise error("rank 1 did it")

    runner, _ = first_rank()
    program = RankProgram.of(one_f_one_b(2, N_MICROBATCHES), 0, rendezvous=False)
    with pytest.raises(error, match="rank 1 did it"):
        runner.run(program, INPUTS, look)
    assert not chainer.get_function_hooks()


def test_an_error_of_the_transport_is_left_alone():
    def stall(microbatch):
        raise StallError("waited")

    runner, _ = first_rank(stall)
    with pytest.raises(StallError, match="waited"):
        run(runner, one_f_one_b(2, N_MICROBATCHES))
