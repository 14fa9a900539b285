"""The choice of a device is told to the user."""

import pytest

from pipeline.porting.porting import port
from tests.support.ported import training_script


@pytest.mark.parametrize(
    "line, is_told",
    [
        ("chainer.cuda.get_device_from_id(args.gpu).use()", True),
        ("chainer.get_device(comm.intra_rank).use()", False),
    ],
)
def test_a_device_for_all_ranks_is_told(line, is_told):
    ported = port(training_script(before=line))
    assert line in ported.text
    told = [
        each for each in ported.findings if "all ranks use this device" in each.text
    ]
    assert len(told) == is_told
