import time

import pytest

from pipeline.supervision.fleet import Fleet
from pipeline.supervision.growth import Growth
from pipeline.supervision.hosts import Host
from pipeline.supervision.orders import Orders
from pipeline.training import control_files
from pipeline.training.control_files import Progress, Wishes


class Hosts:
    """Two hosts, of which some do not answer."""

    def __init__(self):
        self.silent, self.n_asked = {"b"}, 0
        self.fleet = Fleet([Host("a", 1), Host("b", 1)], 2, True, self.answering)
        self.fleet.look()

    def answering(self, names):
        self.n_asked += 1
        self.asked = set(names)
        return set(names) - self.silent


@pytest.fixture
def hosts():
    return Hosts()


@pytest.fixture
def orders(tmp_path):
    with control_files.opened(tmp_path / "run") as folder:
        orders = Orders(folder, "train.py")
        orders.folder = folder
        orders.begin()
        yield orders


def looked(growth, hosts):
    """Polls until the hosts were asked once more, and the answer was taken."""
    before, deadline = hosts.n_asked, time.monotonic() + 60
    while hosts.n_asked == before or growth._look is not None:
        growth.poll()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ranks_stop_when_an_order_finds_a_host_that_is_back(hosts, orders):
    control_files.write(orders.folder, Progress(1, 3, 0.5, time.time()))
    growth = Growth(hosts.fleet, orders, False)
    growth.begin(hosts.fleet.place())
    order = control_files.give(orders.folder, "grow")

    growth.ask(*orders.taken())
    looked(growth, hosts)
    text = control_files.answered(orders.folder, order, 1)
    assert text == "goes on with 1 rank (a:1): b is out of reach"
    # Slurm would start nothing beside the ranks on host a.
    assert hosts.asked == {"b"}
    assert not growth.is_under_way

    hosts.silent.clear()
    order = control_files.give(orders.folder, "grow")
    growth.ask(*orders.taken())
    looked(growth, hosts)
    text = control_files.answered(orders.folder, order, 1)
    assert "start again as 2 ranks (a:1, b:1)" in text
    assert growth.is_under_way
    assert control_files.read(orders.folder, Wishes) == Wishes(1, stop=True)
    growth.begin(hosts.fleet.place())
    assert not growth.is_under_way


@pytest.mark.parametrize("is_wanted", [True, False])
def test_hosts_are_asked_from_time_to_time_if_that_is_wanted(hosts, orders, is_wanted):
    control_files.write(orders.folder, Progress(1, 3, 0.5, time.time()))
    growth = Growth(hosts.fleet, orders, is_wanted)
    growth.begin(hosts.fleet.place())
    growth.poll()
    assert growth._look is None
    growth._next_look = 0.0
    hosts.silent.clear()
    if is_wanted:
        looked(growth, hosts)
    growth.poll()
    assert growth.is_under_way == is_wanted
    # With all ranks there is nothing to look for.
    growth.begin(hosts.fleet.place())
    growth._next_look = 0.0
    growth.poll()
    assert growth._look is None or not is_wanted


def test_ranks_that_read_no_orders_are_not_stopped(hosts, orders):
    growth = Growth(hosts.fleet, orders, True)
    growth.begin(hosts.fleet.place())
    hosts.silent.clear()
    order = control_files.give(orders.folder, "grow")
    growth.ask(*orders.taken())
    looked(growth, hosts)
    assert "the next restart has 2 ranks" in control_files.answered(
        orders.folder, order, 1
    )
    assert not growth.is_under_way
