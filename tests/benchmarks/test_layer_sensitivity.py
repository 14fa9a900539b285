"""What layers can lose."""

from benchmarks.layer_sensitivity import DEGREES, METHODS, measure


def test_each_layer_is_pruned_and_rounded_alone():
    found = measure(epochs=2, seed=0)
    # Two convolutions and the last layer; the normalizations have no products.
    assert list(found.sizes) == ["/0", "/3", "/6"]
    n_ways = len(DEGREES) + sum(method.startswith("int") for method in METHODS)
    assert len(found.trials) == len(found.sizes) * n_ways
    assert found.base > 50
    losses = {(t.layer, t.method, t.degree): found.loss(t) for t in found.trials}
    for layer in found.sizes:
        assert losses[layer, "magnitude", 0.95] >= losses[layer, "magnitude", 0.5] - 1
        assert abs(losses[layer, "int8", 0.0]) < 5
