"""The worked first change "a new update rule", made in a copy of the repository.

It touches two files; tests, kernels for CPU and GPU and the check of the documentation
know the rule by its entry in the catalogue.
"""

import pathlib

import pytest

from tests.support.first_change import NEEDS_GIT, ChangedCopy

pytestmark = [pytest.mark.slow, NEEDS_GIT]

USES_THE_KERNEL = """
import chainer
import numpy as np
from chainer_kernels import update_rules
from mixed_precision import MixedPrecision, fused, to_float16

model = to_float16(chainer.links.Linear(3, 2))
optimizer = MixedPrecision(chainer.optimizers.AdaGrad(), loss_scale=1).setup(model)
for param in model.params():
    param.grad = np.ones_like(param.array)
optimizer.update()
runs, others = fused.plan(optimizer._masters.buffers.groups)
assert (len(runs), others) == (1, []), (runs, others)
print(update_rules.__file__)
"""


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    return ChangedCopy(tmp_path_factory.mktemp("change"), "update_rule.patch")


def test_files_that_are_touched(changed):
    """One entry in the catalogue, one paragraph."""
    assert changed.touched == [
        "docs/howto/mixed_precision.rst",
        "mixed_precision/fused.py",
    ]


def test_the_rule_has_a_kernel(changed):
    found = changed.python("-c", USES_THE_KERNEL).strip()
    assert pathlib.Path(found).is_relative_to(changed.path)


def test_the_loop_is_its_formula(changed):
    tests = "tests/chainer_kernels/test_optimizer_loops_cpu.py"
    # For weights of float16 with masters and without, of float32 and of float64.
    assert changed.passed(tests, "-k", "ada_grad") == 4


def test_the_catalogue_has_it(changed):
    tests = "tests/mixed_precision/test_fused.py"
    # In the documentation, in CUDA, and with the states of Chainer's rule.
    assert changed.passed(tests, "-k", "AdaGradRule") == 3


def test_it_trains_as_chainers(changed):
    # With and without a scale, with every hook, from a snapshot, in planned memory.
    tests = [
        f"tests/mixed_precision/test_{module}.py"
        for module in ("step", "masters", "memory")
    ]
    assert changed.passed(*tests, "-k", "AdaGrad") >= 20
