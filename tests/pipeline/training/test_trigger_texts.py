from chainer.training import triggers

from pipeline.training.trigger_texts import text_of


def early(**options):
    options = {"monitor": "main/loss", "max_trigger": (9, "epoch"), **options}
    return triggers.EarlyStoppingTrigger((1, "epoch"), **options)


def test_equal_triggers_have_equal_texts():
    for make in (lambda: triggers.IntervalTrigger(2, "epoch"), early):
        assert text_of(make()) == text_of(make()) is not None


def test_other_settings_have_other_texts():
    makes = [
        triggers.IntervalTrigger(2, "epoch"),
        triggers.IntervalTrigger(2, "iteration"),
        triggers.ManualScheduleTrigger([2], "epoch"),
        early(),
        early(monitor="main/accuracy"),
        early(monitor="validation/main/loss"),
        early(patience=5),
        early(mode="max"),
        early(max_trigger=(8, "epoch")),
    ]
    assert len({*map(text_of, makes)}) == len(makes)


def test_triggers_that_may_differ_between_ranks_have_no_text():
    class Mine(triggers.IntervalTrigger):
        pass

    assert text_of(Mine(2, "epoch")) is None
    assert text_of(early(monitor="mine/loss")) is None
    assert text_of(triggers.MaxValueTrigger("main/loss")) is None
    assert text_of(lambda trainer: True) is None
