"""The chain's own names of parameters."""

import pytest

from divisible.chains.names import ChainNames

NAMES = ChainNames({1: "/conv", 3: "/blocks/1", 4: "/blocks/10"})


@pytest.mark.parametrize(
    "layer, chain",
    [
        ("/1/W", "/conv/W"),
        ("3/a/b/W", "blocks/1/a/b/W"),
        ("/4/W", "/blocks/10/W"),
        ("/1", "/conv"),
    ],
)
def test_names_translate_both_ways(layer, chain):
    assert NAMES.in_chain(layer) == chain
    assert NAMES.in_layers(chain) == layer


@pytest.mark.parametrize("path", ["/2/W", "W", "/blocks/W", "/10/W"])
def test_what_belongs_to_no_layer_has_no_other_name(path):
    with pytest.raises(KeyError, match="belongs to none of"):
        NAMES.in_chain(path)
    with pytest.raises(KeyError, match="belongs to none of"):
        NAMES.in_layers(path)


def test_a_larger_chain_has_them_below_its_child():
    assert NAMES.within("/predictor").in_chain("1/W") == "predictor/conv/W"
    assert NAMES.within("/a/b").in_layers("/a/b/blocks/10/W") == "/4/W"


def test_it_is_a_mapping_of_positions():
    assert dict(NAMES) == {1: "/conv", 3: "/blocks/1", 4: "/blocks/10"}
    assert len(NAMES) == 3 and NAMES[3] == "/blocks/1"
