"""The costs of a layer add up, and refuse what is no cost."""

import pytest

from divisible import LayerCost


def test_seconds_and_gradients_of_a_layer():
    layer = LayerCost(1.0, 2.0, 4.0, parameter_bytes=400)
    assert (layer.seconds, layer.n_gradients) == (7.0, 100)
    # Parameters of float16 are more elements than their bytes are in float32.
    assert LayerCost(1, 1, 1, parameter_bytes=400, n_parameters=200).n_gradients == 200


def test_a_lambda_is_told_by_its_place():
    assert LayerCost(1, 1, 1, name="conv\nmore").title == "conv"
    assert LayerCost(1, 1, 1, place="net.py:3").title == "lambda in net.py:3"


def test_zero_times_and_nan_are_refused():
    with pytest.raises(ValueError, match="takes no time"):
        LayerCost(0, 0, 0, name="relu")
    for bad in (float("nan"), float("inf"), -1e-9):
        with pytest.raises(ValueError, match="forward of a layer 'relu' is"):
            LayerCost(bad, 1, 1, name="relu\nmore")
    with pytest.raises(ValueError, match="parameter_bytes"):
        LayerCost(1, 1, 1, parameter_bytes=-1)
    with pytest.raises(TypeError, match="forward of a layer '' is None"):
        LayerCost(None, 1, 1)
    with pytest.raises(ValueError, match="passing_bytes .* are 9, but output_bytes"):
        LayerCost(1, 1, 1, output_bytes=8, passing_bytes=9)
