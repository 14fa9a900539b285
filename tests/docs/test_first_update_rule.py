"""The worked first change "a new update rule", made in a copy of the repository.

It touches two files; tests, kernels for CPU and GPU and the check of the documentation
know the rule by its entry in the catalogue.
"""

import pytest

from tests.support.first_change import NEEDS_GIT, ChangedCopy, touched

#: For each file a part of the names of tests, and how many there are at least.
TESTS = {
    "tests/docs/changed_update_rule.py": ("has_a_kernel", 1),
    # For weights of float16 with masters and without, of float32 and of float64.
    "tests/chainer_kernels/test_optimizer_loops_cpu.py": ("ada_grad", 4),
    # In the documentation, in CUDA, and with the states of Chainer's rule.
    "tests/mixed_precision/test_fused.py": ("AdaGradRule", 3),
    # With and without a scale, with every hook, from a snapshot, in planned memory.
    "tests/mixed_precision/test_step.py": ("AdaGrad", 10),
    "tests/mixed_precision/test_masters.py": ("AdaGrad", 1),
    "tests/mixed_precision/test_memory.py": ("AdaGrad", 3),
}


@pytest.mark.slow
@NEEDS_GIT
def test_a_new_update_rule(tmp_path):
    # One entry in the catalogue, one paragraph.
    assert touched("update_rule.patch") == [
        "docs/howto/mixed_precision.rst",
        "mixed_precision/fused.py",
    ]
    changed = ChangedCopy(tmp_path, "update_rule.patch")
    passed = changed.passed(*TESTS, "-k", "ada_grad or AdaGrad or has_a_kernel")
    for file, (name, n) in TESTS.items():
        found = [each for each in passed if each.startswith(file) and name in each]
        assert len(found) >= n, (file, passed)
