"""A new wire dtype is two loops, one entry and one paragraph; all else follows."""

import pytest

from tests.support.first_change import NEEDS_GIT, ChangedCopy

NAME = "int16"
#: Between two ranks it is as simulated, and takes half of float32's bytes.
EXCHANGE = f"""
from tests.docs.test_first_wire_dtype import exchange
from tests.support.mpiexec import assert_on_ranks
from tests.support.ranks import close_shared_ranks
assert_on_ranks(2, exchange, {NAME!r})
close_shared_ranks()
"""
PAGES = f"""
import sys
sys.path.append("docs/_extensions")
import wire_tables
for make in (wire_tables.bounds, wire_tables.errors):
    assert any({NAME!r} in line for line in make()), make()
"""
PLAN = f"""
from divisible import LayerCost, Machine, Profile, best_plan
layers = [LayerCost(1, 1, 1, output_bytes=10, parameter_bytes=4000)] * 4
options = dict(replicas=(1, 2), exchange_dtype={NAME!r})
plan = best_plan(Profile(layers, n_samples=64), Machine(4), **options)
print(plan)
"""


def exchange(comm, name):
    """Compares it with its simulation, and counts what it sends."""
    from data_parallel import simulate_exchange
    from tests.mpi.data_parallel.test_exchange import gradients_of, one_array

    one_array(comm, 1, exchange_dtype=name)
    gradients = gradients_of(2, 5000)
    sent, whole = (
        simulate_exchange(gradients, exchange_dtype=each).sent_bytes
        for each in (name, "fp32")
    )
    assert sent == pytest.approx(whole / 2, rel=0.05)


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    return ChangedCopy(tmp_path_factory.mktemp("change"), "wire_dtype.patch")


@pytest.mark.slow
@NEEDS_GIT
def test_a_new_wire_dtype(changed):
    assert changed.touched == [
        "chainer_kernels/loops/wire.py",
        "divisible/communication/wire.py",
        "docs/howto/data_parallel.rst",
    ]
    # One rounding, and two of an exchange, keep to the bound of the entry.
    tests = "tests/divisible/communication/test_wire.py", "tests/data_parallel"
    chosen = "keeps_to_its_bound or keep_to_their_bound or coded_alone"
    assert changed.passed(*tests, "-k", chosen) == 3
    changed.python("-c", EXCHANGE)
    changed.python("-c", PLAN)
    pytest.importorskip("sphinx", reason="the tables are made by Sphinx")
    changed.python("-c", PAGES)
