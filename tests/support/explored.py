"""Questions of the page, their simulations, and profiles for them."""

from __future__ import annotations

from divisible import LayerCost, Plan, Profile
from divisible.explore.question import Question
from divisible.explore.simulation import Simulation, simulated
from divisible.explore.sources import Sources
from divisible.planning.conditions import Conditions
from divisible.planning.machine import Machine
from divisible.planning.network import Network


def asked(sources: Sources | None = None, **fields) -> Simulation:
    """Returns the simulation of a question with some fields."""
    return simulated(Question(**fields), sources or Sources())


def uneven_profile(n_layers: int = 10, n_samples: int = 8) -> Profile:
    """Returns a profile whose later layers take longer and hold more."""
    layers = [
        LayerCost(
            1e-3 * (i + 1),
            1e-3,
            2e-3,
            output_bytes=4000,
            activation_bytes=1000 * (i + 1),
            parameter_bytes=10_000,
            pending_bytes=300,
            name=f"layer {i}",
        )
        for i in range(n_layers)
    ]
    return Profile(layers, n_samples, input_bytes=400)


def plan_of(n_layers: int = 10, **fields) -> Plan:
    """Returns a plan for the layers of such a profile, on two ranks with a link."""
    conditions = Conditions(Machine(2, network=Network(1e6, 1e-3)), batch=32)
    cuts = [0, n_layers // 2, n_layers]
    return Plan(cuts, 4, "1f1b", conditions=conditions, **fields)
