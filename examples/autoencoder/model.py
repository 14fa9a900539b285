"""An autoencoder with tied weights as a list of layers."""

from __future__ import annotations

from collections.abc import Sequence

import chainer.functions as F
import chainer.links as L

from divisible import Divisible


class Autoencoder(Divisible):
    """Fully connected layers down to a few numbers, and the same ones back up.

    The decoder's weights are the transposes of the encoder's, and learn with them::

        Linear  relu  Linear  relu | Linear  relu  Linear
        '/0/W'        '/2/W'         /2/W^T        /0/W^T
        '/0/b'        '/2/b'         '/4/b'        '/6/b'

    Args:
        sizes: Numbers of inputs, of the layers in between, and of the code.

    See Hinton and Salakhutdinov, Reducing the Dimensionality of Data with Neural
    Networks, Science 313, 2006.
    """

    def __init__(self, sizes: Sequence[int] = (64, 128, 8)) -> None:
        there = list(zip(sizes, sizes[1:]))
        back = [(n_out, n_in) for n_in, n_out in reversed(there)]
        for n_in, n_out in [*there, *back]:
            self.append(L.Linear(n_in, n_out))
            self.append(F.relu)
        # The outputs are not limited.
        del self[-1]
        last = len(self) - 1
        for position in range(0, last // 2, 2):
            self.tie(f"/{position}/W", f"/{last - position}/W", transpose=True)
