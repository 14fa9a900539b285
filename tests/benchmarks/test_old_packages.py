"""The packages that are tried have programs; who installs them needs a network."""

import pytest

from benchmarks.old_packages import __main__ as benchmark


@pytest.mark.parametrize("package", benchmark.PACKAGES, ids=lambda each: each.name)
def test_each_package_has_a_program_that_python_reads(package):
    text = package.program.read_text()
    compile(text, package.program.name, "exec")
    assert package.name.replace("-", "_") in text


def test_no_program_is_left_over():
    found = {path.name for path in benchmark.PROGRAMS.glob("*.py")}
    assert found == {package.program.name for package in benchmark.PACKAGES}
