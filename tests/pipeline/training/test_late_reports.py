"""Sums of late values are those of values that are known at once."""

import chainer
import numpy as np
import pytest
from chainer.reporter import DictSummary
from chainer.training import extensions, triggers

from pipeline.step.late_dict import LateDict, LateValue
from pipeline.training.late_reports import LateSummary, let_wait

VALUES = [{"loss": float(x), "rate": 0.1} for x in np.random.RandomState(0).rand(5)]


def late(values, reads):
    """Returns an observation whose loss is late."""
    loss = LateValue("loss", lambda: reads.append(values["loss"]) or values)
    return LateDict(loss=loss, rate=values["rate"]).unread()


def sums():
    """Returns Chainer's sums, the late ones, and the values that were read for them."""
    plain, summary, reads = DictSummary(), LateSummary(), []
    for values in VALUES:
        plain.add(values)
        summary.add(late(values, reads))
    return plain, summary, reads


def test_the_last_values_are_read_when_the_means_are_wanted():
    plain, summary, reads = sums()
    assert reads == [values["loss"] for values in VALUES[:-1]]
    assert summary.compute_mean() == plain.compute_mean()
    assert len(reads) == len(VALUES)
    assert summary.make_statistics() == plain.make_statistics()


def test_a_snapshot_has_all_values():
    plain, summary, _ = sums()
    written = [{}, {}]
    for target, each in zip(written, (plain, summary)):
        each.serialize(chainer.serializers.DictionarySerializer(target))
    assert written[0] == written[1]
    summary.serialize(chainer.serializers.NpzDeserializer(written[0]))
    assert summary.compute_mean() == plain.compute_mean()


def test_a_loaded_summary_forgets_values_that_were_not_read():
    plain, summary, reads = sums()
    written, before = {}, len(reads)
    plain.serialize(chainer.serializers.DictionarySerializer(written))
    summary.serialize(chainer.serializers.NpzDeserializer(written))
    assert summary.compute_mean() == plain.compute_mean() and len(reads) == before


class Mine(extensions.LogReport):
    pass


@pytest.mark.parametrize(
    "extension",
    [
        Mine(),
        extensions.LogReport(trigger=triggers.MaxValueTrigger("main/loss")),
        extensions.ProgressBar(),
    ],
)
def test_other_extensions_stay_as_they_are(extension):
    kind = type(extension)
    let_wait(extension)
    assert type(extension) is kind


def test_the_report_in_a_print_report_waits_too():
    inner = extensions.LogReport()
    let_wait(extensions.PrintReport(["loss"], inner))
    assert isinstance(inner._summary, LateSummary)
    assert type(inner).__name__ == "LogReport"
