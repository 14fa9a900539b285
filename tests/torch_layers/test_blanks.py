"""Modules on the device "meta" are made stage by stage, alike on any cut."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from divisible import NotMadeError, deferred_init  # noqa: E402
from torch_layers import TorchLayer, from_torch  # noqa: E402


def build():
    tied = nn.Embedding(7, 8)
    head = nn.Linear(8, 7, bias=False)
    head.weight = tied.weight
    return nn.Sequential(
        tied,
        nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True),
        nn.BatchNorm1d(5),
        nn.Linear(8, 8),
        head,
    )


def deferred(seed=0):
    with deferred_init(seed), torch.device("meta"):
        return from_torch(build())


IDS = np.arange(15).reshape(3, 5) % 7


def test_weights_are_the_same_for_any_cut():
    whole = deferred().divide()
    expected = {path: param.array.copy() for path, param in whole.namedparams()}
    assert all(np.isfinite(array).all() for array in expected.values())
    assert not expected["/1/self_attn.out_proj.bias"].any()
    assert expected["/3/weight"].std() > 0.1
    for cuts in ([0, 2, 5], [0, 1, 4, 5]):
        model, found = deferred(), {}
        for start, end in zip(cuts, cuts[1:]):
            stage = model.divide(start, end)
            for path, param in stage.namedparams():
                np.testing.assert_array_equal(param.array, expected[path], path)
                found[path] = param
            state = stage.torch_state_dict()
            for key, tensor in state.items():
                assert not tensor.is_meta, key
        assert {*found} == {*expected}
    y = whole(IDS)
    assert y.shape == (3, 5, 7)
    assert np.isfinite(y.array).all()
    other = deferred(1).divide()
    assert (other[3].weight.array != expected["/3/weight"]).any()


def test_a_stage_takes_no_memory_for_other_layers():
    with deferred_init(0), torch.device("meta"):
        model = from_torch(nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))))
    with pytest.raises(NotMadeError, match="built in deferred_init"):
        model(np.ones((1, 512), np.float32))
    stage = model.divide(1, 2)
    stage[0].share()
    assert stage[0].module.weight.device.type == "cpu"
    assert model[0].module.weight.is_meta
    assert stage(np.ones((1, 512), np.float32)).shape == (1, 512)


def test_a_tied_parameter_stays_one():
    model = deferred()
    assert [tie.path for tie in model.ties] == ["/0/weight"]
    whole = model.divide()
    assert whole[0].weight is whole[4].weight
    whole(IDS)
    assert whole[0].module.weight.data_ptr() == whole[4].module.weight.data_ptr()


def test_what_cannot_be_filled_is_refused():
    class Free(nn.Module):
        def __init__(self):
            super().__init__()
            self.position = nn.Parameter(torch.randn(3))

    with (
        torch.device("meta"),
        pytest.raises(ValueError, match="position of Free is on"),
    ):
        TorchLayer(Free())
