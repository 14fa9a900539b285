"""Links that are taken apart because no layer can make their calls, or are not."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import from_chain
from divisible.chains.calls import ChainError


class Scaled(chainer.Chain):
    """A block that gets a number."""

    def __init__(self):
        super().__init__(fc=L.Linear(6, 6))

    def forward(self, x, factor):
        return F.tanh(self.fc(x)) * factor


class Net(chainer.Chain):
    def __init__(self):
        super().__init__(block=Scaled(), out=L.Linear(6, 2))

    def forward(self, x):
        return self.out(self.block(x, 0.5))


def test_a_block_that_gets_a_number_is_taken_apart():
    x = np.random.RandomState(0).rand(3, 6).astype(np.float32)
    net = Net()
    model = from_chain(net, x)
    assert net.block.fc in list(model)
    np.testing.assert_allclose(model(x).array, net(x).array, rtol=1e-5)


class Reader(chainer.Chain):
    """Calls a link of Chainer with a list of sequences."""

    def __init__(self):
        super().__init__(words=L.EmbedID(9, 4), lstm=L.NStepLSTM(1, 4, 5, 0.0))

    def forward(self, xs):
        h, _, _ = self.lstm(None, None, [self.words(x) for x in xs])
        return h[-1]


def test_a_refused_list_of_sequences_names_the_call_alone():
    with pytest.raises(ChainError) as caught:
        from_chain(Reader(), np.zeros((3, 4), np.int32))
    text = str(caught.value)
    assert "/lstm (NStepLSTM) is called with a list of 3 arrays, xs" in text
    assert "in Reader.forward: h, _, _ = self.lstm(" in text
    assert "reads the parameter" not in text and text.count("\n") == 1, text
