"""Arguments of an exchange, refused before anything is sent."""

import numpy as np
import pytest

from data_parallel.settings import Settings
from data_parallel.start import Options
from divisible.communication.wire import WIRE

OPTIONS = Options(None, 2**20, None, None, False, 100, None, 300.0)


@pytest.mark.parametrize("name", [*WIRE, "fp8"])
def test_defaults_are_right(name):
    settings = Settings(name).checked()
    assert settings.wire.name == ("e4m3" if name == "fp8" else name)
    assert settings.rounds == "truncate"
    OPTIONS.check(settings)


def test_the_paper_has_e5m2():
    for name in ["fp8", "e5m2"]:
        assert Settings(name, "oyama2017").checked().wire.name == "e5m2"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"strategy": "ring"}, ValueError, "'two_roundings' or 'oyama2017', not ring"),
        ({"exchange_dtype": "int3"}, ValueError, "int4, fp8, not 'int3'"),
        ({"exchange_dtype": ["int8"]}, ValueError, "int4, fp8, not"),
        (
            {"strategy": "oyama2017", "exchange_dtype": "int8"},
            ValueError,
            "sends e5m2, not 'int8'",
        ),
        ({"ratio": None}, TypeError, "ratio must be True or False, not None"),
        ({"rounding": "up"}, ValueError, "'nearest' or 'truncate', not 'up'"),
        ({"rounding": "truncate"}, ValueError, "is of strategy 'oyama2017'"),
        ({"quantile": 0}, ValueError, r"quantile must be in \(0, 1\], not 0"),
        ({"quantile": float("nan")}, ValueError, "quantile must be in"),
        ({"quantile": "most"}, TypeError, "'str'"),
        ({"samples": 0}, ValueError, "samples must be 1 or more, not 0"),
        ({"samples": 10.5}, TypeError, "samples must be an integer, not 10.5"),
        ({"epsilon": 0}, ValueError, "epsilon must be positive, not 0"),
        ({"seed": -1}, ValueError, "seed must be 0 or more, not -1"),
        ({"seed": None}, TypeError, "seed must be an integer, not None"),
        ({"q": 0.0}, ValueError, "q must be positive, not 0.0"),
    ],
)
def test_settings_that_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        Settings(**arguments).checked()


@pytest.mark.parametrize("block", [0, -16, 8, 24, 256.0, "256", True, None, np.inf])
def test_a_block_is_a_multiple_of_16(block):
    with pytest.raises(ValueError, match="a positive multiple of 16, not"):
        Settings(block=block).checked()


def test_numpy_s_integers_are_integers():
    Settings(block=np.int64(32), seed=np.uint8(3)).checked()
    OPTIONS._replace(minimum=np.int32(0)).check(Settings())


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"bucket_bytes": 0}, ValueError, "bucket_bytes must be 1 or more, not 0"),
        ({"bucket_bytes": 25e6}, TypeError, "bucket_bytes must be an integer"),
        ({"bucket_bytes": None}, TypeError, "bucket_bytes must be an integer"),
        ({"chunk_bytes": 0}, ValueError, "chunk_bytes must be 1 or more, not 0"),
        ({"local_size": 0}, ValueError, "local_size must be 1 or more, not 0"),
        ({"local_size": 1.5}, TypeError, "local_size must be an integer, not 1.5"),
        ({"minimum": -1}, ValueError, "minimum must be 0 or more, not -1"),
        ({"every": 0}, ValueError, "every must be 1 or more, not 0"),
        ({"fp32_first": -1}, ValueError, "fp32_first must be 0 or more, not -1"),
        ({"fp32_first": 0.5}, TypeError, "fp32_first must be an integer, not 0.5"),
        ({"timeout": 0}, ValueError, "timeout must be positive, not 0"),
        ({"timeout": float("nan")}, ValueError, "timeout must be positive"),
        ({"timeout": "long"}, TypeError, "'str'"),
    ],
)
def test_options_that_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        OPTIONS._replace(**arguments).check(Settings())


def test_strategies_have_their_own_dtypes():
    assert Settings().checked().wire.name == "int8"
    assert Settings(strategy="oyama2017").checked().wire.name == "e5m2"


@pytest.mark.parametrize(
    ("arguments", "given", "expected"),
    [
        ({"strategy": "oyama2017"}, None, 100),
        ({"strategy": "oyama2017"}, 7, 7),
        ({"strategy": "oyama2017", "exchange_dtype": "fp8"}, None, 0),
        ({"strategy": "oyama2017", "exchange_dtype": "fp8"}, 7, 7),
        ({}, None, 0),
        ({}, 7, 7),
    ],
)
def test_the_paper_begins_in_float32(arguments, given, expected):
    options = OPTIONS._replace(fp32_first=given)
    assert options.n_in_fp32(Settings(**arguments)) == expected


def test_the_paper_knows_no_error_feedback():
    with pytest.raises(ValueError, match="knows no error feedback: leave it out"):
        OPTIONS._replace(error_feedback=True).check(Settings("fp8", "oyama2017"))


@pytest.mark.parametrize("name", WIRE)
def test_a_gpu_codes_all_but_the_paper_and_4_bits(name):
    assert Settings(name).runs_on_gpu == (name != "int4")
    unknown = WIRE[name]._replace(name="int9")
    assert not unknown.has_kernels


def test_the_paper_is_coded_on_the_host():
    assert not Settings("fp8", "oyama2017").runs_on_gpu
