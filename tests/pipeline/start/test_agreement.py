"""What ranks say of themselves, compared: no ranks are needed for that."""

import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, pop, stash
from divisible.communication.errors import DisagreementError
from divisible.schedules import one_f_one_b
from divisible.schedules.actions import Route
from pipeline.calls.tie_exchange import SharedParameter
from pipeline.stages.loss import Loss
from pipeline.start.agreement import (
    Refusal,
    StartAnnouncement,
    agree,
    check_placement,
)
from pipeline.start.arguments import Arguments

DEFAULTS = Arguments(
    stages=Divisible(F.relu),
    n_microbatches=2,
    schedule="1f1b",
    lossfun=F.softmax_cross_entropy,
    accfun=F.accuracy,
    transport="mpi",
    message_dtype=None,
    timeout=10.0,
    recompute="never",
    seed=0,
    deferred_batch_norm=True,
    loss_scale=None,
    hold_in="memory",
    hold_dtype="float32",
    fuse="none",
    weight_groups=1,
)


def line(n_layers=4):
    return Divisible(*(L.Linear(3, 3) for _ in range(n_layers)))


def say(model, *ranges, of_loss=(), **arguments):
    """Returns what a rank says that has these layers of a model."""
    stages = [model.divide(*positions) for positions in ranges]
    checked = DEFAULTS._replace(stages=stages, **arguments).checked()
    settings = checked.to_compare(Loss(checked.lossfun, checked.accfun).names)
    word = StartAnnouncement.of(stages, of_loss, settings, True)
    # As a host on which nothing else runs.
    return word._replace(host="a", n_threads=1, n_cores=4)


def pair(model):
    """Two ranks with a half of the model each."""
    n = len(model)
    return [say(model, (0, n // 2)), say(model, (n // 2, n))]


def test_stages_in_the_order_of_the_model():
    model = line()
    said = [say(model, (2, 3), (3, 4)), say(model, (0, 1)), say(model, (1, 2))]
    start = agree(said)
    assert start.stage_ranks == [1, 2, 0, 0]
    assert start.routes == [] and start.shared == []
    assert start.dtypes == {np.dtype("float32")}


def test_routes_lead_from_stage_to_stage():
    model = Divisible(
        stash("far"), stash("near"), pop("near", F.add), F.relu, pop("far", F.add)
    )
    said = [say(model, (0, 3)), say(model, (3, 4)), say(model, (4, 5))]
    assert agree(said).routes == [Route("far", 0, 2)]


def test_shared_parameters():
    model = line(5)
    model.tie("/0/W", "/1/W")
    model.tie("/2/W", "/4/W", transpose=True)
    said = [say(model, (0, 3)), say(model, (3, 4)), say(model, (4, 5))]
    assert agree(said).shared == [SharedParameter("/2/W", (0, 2))]


def with_skip(n):
    layers = [stash("a"), *(F.relu for _ in range(4))]
    layers[n] = pop("a", F.add)
    return Divisible(*layers)


def tied(*paths):
    model = line()
    model.tie(*paths)
    return model


def averaging():
    norm = L.BatchNormalization(3)
    return Divisible(norm, F.relu, norm, F.relu)


def unsized():
    linear = L.Linear(None, 3)
    return Divisible(F.relu, linear, F.relu, linear)


@pytest.mark.parametrize(
    "said, message",
    [
        (
            [*pair(line()), Refusal("ValueError: seed must be from 0")],
            "rank 2 refuses to start: ValueError: seed must be from 0",
        ),
        (
            [say(line(4), (0, 2)), say(line(5), (2, 5))],
            "rank 0 divided a model of 4 layers, rank 1 one of 5",
        ),
        (
            [say(line(), (0, 2)), say(Divisible(*line()[:3], F.relu), (2, 4))],
            "rank 0 and rank 1 built different models: layer 3 is Linear.* on rank 0",
        ),
        (
            [
                pair(with_skip(3))[0],
                pair(with_skip(3))[1]._replace(skips=with_skip(4).skips),
            ],
            "built different models, with the skips .*pop=3.* and .*pop=4",
        ),
        (
            [pair(tied("/0/W", "/1/W"))[0], pair(tied("/0/W", "/3/W"))[1]],
            r"built different models, with the ties .*\(0, 1\).* and .*\(0, 3\)",
        ),
        (
            [say(line(), (0, 1)), say(line(), (2, 4))],
            "rank 1 has the layers 2 to 3, but layer 1 comes next; the ranks have 0 to"
            " 0 on rank 0, 2 to 3 on rank 1",
        ),
        (
            [say(line(), (0, 3)), say(line(), (2, 4))],
            "rank 1 has the layers 2 to 3, but layer 3 comes next",
        ),
        (
            [say(line(), (0, 2)), say(line(), (2, 3))],
            "no rank has the layers from 3 to 3; the ranks have 0 to 1 on rank 0",
        ),
        (
            pair(averaging()),
            "layers 0 and 2 have /0 in common, but are in the stages 0, 1, which"
            " cannot share it: .*running averages. Cut so that",
        ),
        (
            pair(unsized()),
            "/1/W is shared by the stages 0, 1, but its shape is not known before",
        ),
    ],
)
def test_stages_that_do_not_make_up_one_model(said, message):
    with pytest.raises(DisagreementError, match=message):
        agree(said)


@pytest.mark.parametrize(
    "name, value",
    [
        ("n_microbatches", 3),
        ("schedule", "gpipe"),
        ("schedule", one_f_one_b(2, 2)),
        ("transport", "chainermn"),
        ("message_dtype", "fp16"),
        ("recompute", "always"),
        ("hold_dtype", "bfloat16"),
        ("seed", 1),
        ("deferred_batch_norm", False),
        ("loss_scale", 8),
    ],
)
def test_settings_that_differ(name, value):
    model = line()
    said = [say(model, (0, 2)), say(model, (2, 4), **{name: value})]
    message = f"{name} differs between rank 0 and rank 1:\n"
    with pytest.raises(DisagreementError, match=message) as caught:
        agree(said)
    assert str(value) in str(caught.value)


def test_an_accuracy_on_some_ranks_only():
    model = line()
    said = [say(model, (0, 2), accfun=None), say(model, (2, 4))]
    message = "what lossfun and accfun give differs .*\nloss\nloss, accuracy"
    with pytest.raises(DisagreementError, match=message):
        agree(said)


def test_settings_that_may_differ():
    model = line()
    other = {"timeout": 3.0, "lossfun": lambda y, t: F.sum(y), "accfun": len}
    start = agree([say(model, (0, 2)), say(model, (2, 4), **other)])
    assert start.stage_ranks == [0, 1]


def test_a_loss_with_a_parameter_of_an_earlier_stage():
    model = line()
    of_loss = [model[0].W, L.Linear(3, 3).W]
    # Only the last stage's rank runs the loss.
    first, last = say(model, (0, 2), of_loss=of_loss), say(model, (2, 4))
    agree([first, last])
    with pytest.raises(DisagreementError, match="the loss uses /0/W, a parameter of"):
        agree([first, say(model, (2, 4), of_loss=of_loss)])


def test_a_schedule_for_other_ranks():
    schedule = one_f_one_b(2, 2)
    check_placement(schedule, [0, 1])
    with pytest.raises(DisagreementError, match=r"on the ranks \[0, 1\], but they are"):
        check_placement(schedule, [1, 0])
