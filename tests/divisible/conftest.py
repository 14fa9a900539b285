import types

import numpy as np
import pytest
from chainer.backends import cuda


class NumPyForCuPy(np.random.RandomState):
    """Seeded as CuPy does it."""

    def __init__(self, seed, method=100):
        super().__init__()
        self.seed(seed)

    def seed(self, seed):
        wide = np.asarray(seed).astype(np.uint64, casting="safe")
        super().seed([int(wide) & 0xFFFFFFFF, int(wide) >> 32])


@pytest.fixture
def fake_cupy(monkeypatch):
    """What there is of CuPy's random module, with NumPy's generators in it."""
    current = [NumPyForCuPy(np.uint64(9))]
    random = types.SimpleNamespace(
        RandomState=NumPyForCuPy,
        get_random_state=lambda: current[0],
        set_random_state=lambda state: current.__setitem__(0, state),
        seed=lambda seed: current[0].seed(seed),
    )
    curand = types.SimpleNamespace(CURAND_RNG_PSEUDO_PHILOX4_32_10=161)
    fake = types.SimpleNamespace(
        random=random,
        cuda=types.SimpleNamespace(curand=curand),
        is_available=lambda: True,
    )
    monkeypatch.setattr(cuda, "cupy", fake)
    return fake
