"""The worked first change "a new update rule", made in a copy of the repository.

It touches two files; tests, kernels for CPU and GPU and the check of the documentation
know the rule by its entry in the catalogue.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests.support.processes import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("git") is None, reason="git applies the patch"),
]

PATCH = ROOT / "docs" / "first_changes" / "update_rule.patch"
LEFT_OUT = shutil.ignore_patterns(
    ".*", "__pycache__", "build", "_pictures", "*.egg-info", "benchmarks"
)

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
runs, others = fused.plan(optimizer._buffers.groups)
assert (len(runs), others) == (1, []), (runs, others)
print(update_rules.__file__)
"""


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """The path of a copy with the change, and the files that it touches."""
    copy = tmp_path_factory.mktemp("change") / "repository"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    result = run(copy, "git", "apply", "--verbose", str(PATCH))
    return copy, re.findall(r"Applied patch (\S+) cleanly", result.stderr)


def run(copy, *command):
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "CHAINER_KERNELS_CACHE": str(copy.parent / "cache"),
        # No repository that the copy may lie in.
        "GIT_CEILING_DIRECTORIES": str(copy.parent),
    }
    result = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def run_tests(copy, *arguments):
    """Returns how many tests have passed."""
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    result = run(copy, *pytest_command, *arguments)
    return int(re.search(r"(\d+) passed", result.stdout)[1])


def test_files_that_are_touched(changed):
    """One entry in the catalogue, one paragraph."""
    _, touched = changed
    assert sorted(touched) == [
        "docs/howto/mixed_precision.rst",
        "mixed_precision/fused.py",
    ]


def test_the_rule_has_a_kernel(changed):
    copy, _ = changed
    result = run(copy, sys.executable, "-c", USES_THE_KERNEL)
    assert pathlib.Path(result.stdout.strip()).is_relative_to(copy)


def test_the_loop_is_its_formula(changed):
    copy, _ = changed
    tests = "tests/chainer_kernels/test_optimizer_loops_cpu.py"
    # For weights of float16 with masters and without, of float32 and of float64.
    assert run_tests(copy, tests, "-k", "ada_grad") == 4


def test_the_catalogue_has_it(changed):
    copy, _ = changed
    tests = "tests/mixed_precision/test_fused.py"
    # In the documentation, in CUDA, and with the states of Chainer's rule.
    assert run_tests(copy, tests, "-k", "AdaGradRule") == 3


def test_it_trains_as_chainers(changed):
    copy, _ = changed
    tests = "tests/mixed_precision/test_optimizer.py"
    # With and without a scale, with every hook, from a snapshot, in planned memory.
    assert run_tests(copy, tests, "-k", "AdaGrad") >= 20
