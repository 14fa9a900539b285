"""What holds of the wire dtype of a first change. Runs in a copy that has it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_parallel import simulate_exchange
from divisible import LayerCost, Machine, Profile, best_plan
from tests.data_parallel import test_simulation
from tests.divisible.communication import test_wire
from tests.mpi.data_parallel.test_exchange import gradients_of, one_array
from tests.support.mpiexec import assert_on_ranks
from tests.support.processes import ROOT

NAME = "int16"


def inner(test):
    """Returns what a property test calls with each example."""
    return test.hypothesis.inner_test


@given(test_wire.values(), test_wire.blocks)
def test_one_rounding(x, block):
    inner(test_wire.test_one_rounding_keeps_to_its_bound)(NAME, x, block)
    inner(test_wire.test_blocks_are_coded_alone)(NAME, x, block)


@given(test_simulation.replicas(), st.integers(1, 9), st.booleans())
def test_two_roundings(gradients, local, is_unequal):
    property_ = inner(test_simulation.test_two_roundings_keep_to_their_bound)
    property_(gradients, NAME, local, 16, is_unequal)


def exchange(comm):
    """Compares it with its simulation, and counts what it sends."""
    one_array(comm, 1, exchange_dtype=NAME)
    gradients = gradients_of(2, 5000)
    sent, whole = (
        simulate_exchange(gradients, exchange_dtype=each).sent_bytes
        for each in (NAME, "fp32")
    )
    assert sent == pytest.approx(whole / 2, rel=0.05)


def test_between_two_ranks_it_is_as_simulated():
    assert_on_ranks(2, exchange)


def test_plans_may_have_it():
    layers = [LayerCost(1, 1, 1, output_bytes=10, parameter_bytes=4000)] * 4
    options = {"replicas": (2, 2), "exchange_dtype": NAME}
    plan = best_plan(Profile(layers, n_samples=64), Machine(4), **options)
    assert plan.exchange_dtype == NAME


def test_pages_have_it(monkeypatch):
    pytest.importorskip("sphinx", reason="the tables are made by Sphinx")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_extensions"))
    import wire_tables

    assert any(NAME in line for line in wire_tables.bounds())
    # Others need not be compiled.
    monkeypatch.setattr(wire_tables, "WIRE", {NAME: wire_tables.WIRE[NAME]})
    assert any(NAME in line for line in wire_tables.errors())
