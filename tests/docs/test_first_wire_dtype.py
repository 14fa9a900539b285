"""A new wire dtype is two loops, one entry and one paragraph; all else follows."""

import pytest

from tests.support.first_change import NEEDS_GIT, ChangedCopy, touched


@NEEDS_GIT
def test_the_patch_fits():
    assert touched("wire_dtype.patch") == [
        "chainer_kernels/loops/wire.py",
        "divisible/communication/wire.py",
        "docs/howto/data_parallel.rst",
    ]


@pytest.mark.matrix
@NEEDS_GIT
def test_a_new_wire_dtype(tmp_path):
    changed = ChangedCopy(tmp_path, "wire_dtype.patch")
    assert len(changed.passed("tests/docs/changed_wire_dtype.py")) >= 4
