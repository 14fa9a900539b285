"""A small language model with a tied embedding as a list of layers."""

from __future__ import annotations

from functools import partial

import chainer
import chainer.functions as F
import chainer.links as L
from chainer.initializers import HeNormal, Normal

from divisible import Divisible, carry_state


class GatedConvolution(chainer.Chain):
    """Looks back at the last positions: ``x + a * sigmoid(b)``, both convolutions.

    Reports as ``'gate'`` how far the gates are open, from 0 to 1.

    Args:
        n_units (int): Units of each position.
        n_back (int): Positions that a convolution sees, the current one included.

    See Dauphin et al., Language Modeling with Gated Convolutional Networks, ICML 2017.
    """

    def __init__(self, n_units: int, n_back: int) -> None:
        super().__init__()
        self._pad = n_back - 1
        with self.init_scope():
            self.convolution = L.Convolution1D(
                n_units, 2 * n_units, n_back, pad=n_back - 1, initialW=HeNormal(0.5)
            )

    def forward(self, x):
        """Convolves ``x`` of the shape (samples, units, positions)."""
        # Padded on both sides; without the end no position sees a later one.
        both = self.convolution(x)[:, :, : x.shape[2]]
        a, b = F.split_axis(both, 2, axis=1)
        gate = F.sigmoid(b)
        chainer.report({"gate": F.mean(gate)}, self)
        return x + a * gate


class NextWord(L.Linear):
    """Scores of each word of the vocabulary, for every position."""

    def forward(self, x):
        """Turns (samples, positions, units) into (samples, words, positions)."""
        return F.swapaxes(super().forward(x, n_batch_axes=2), 1, 2)


class Recurrent(chainer.Chain):
    """Reads the positions of a window, continuing from the end of the window before.

    Args:
        n_units (int): Units of each position.
    """

    def __init__(self, n_units: int) -> None:
        super().__init__()
        with self.init_scope():
            self.lstm = carry_state(L.LSTM(n_units, n_units))

    def forward(self, x):
        """Reads ``x`` of the shape (samples, positions, units)."""
        return F.stack([self.lstm(each) for each in F.separate(x, axis=1)], axis=1)


class LanguageModel(Divisible):
    """Predicts the next word at each position of a text.

    The embedding of a word is also the weight of its score, as one parameter::

        EmbedID  dropout swapaxes | gated convolutions, dropout | swapaxes  NextWord
        '/0/W' - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - >  W

    from word numbers of the shape (samples, positions) to scores of the shape (samples,
    words, positions).

    Args:
        n_words (int): Size of the vocabulary.
        n_units (int): Units of each position.
        n_convolutions (int): Number of gated convolutions.
        n_back (int): Positions that a convolution sees.
        dropout (float): Dropout ratio.

    See Press and Wolf, Using the Output Embedding to Improve Language Models, EACL
    2017.
    """

    def __init__(
        self,
        n_words: int,
        n_units: int = 64,
        n_convolutions: int = 3,
        n_back: int = 4,
        dropout: float = 0.2,
    ) -> None:
        # Small weights, for the scores: with the usual size of 1 the first ones are
        # huge.
        self.append(L.EmbedID(n_words, n_units, initialW=Normal(n_units**-0.5)))
        self.append(partial(F.dropout, ratio=dropout))
        self.append(partial(F.swapaxes, axis1=1, axis2=2))
        for _ in range(n_convolutions):
            self.append(GatedConvolution(n_units, n_back))
            self.append(partial(F.dropout, ratio=dropout))
        self.append(partial(F.swapaxes, axis1=1, axis2=2))
        self.append(NextWord(n_units, n_words))
        self.tie("/0/W", f"/{len(self) - 1}/W")


class RecurrentModel(Divisible):
    """A language model that continues from window to window of a text.

    Args:
        n_words (int): Size of the vocabulary.
        n_units (int): Units of each position.
        n_layers (int): Number of recurrent layers.
        dropout (float): Dropout ratio.

    See Zaremba et al., Recurrent Neural Network Regularization, 2014.
    """

    def __init__(
        self,
        n_words: int,
        n_units: int = 64,
        n_layers: int = 2,
        dropout: float = 0.2,
    ) -> None:
        self.append(L.EmbedID(n_words, n_units, initialW=Normal(n_units**-0.5)))
        for _ in range(n_layers):
            self.append(partial(F.dropout, ratio=dropout))
            self.append(Recurrent(n_units))
        self.append(partial(F.dropout, ratio=dropout))
        self.append(NextWord(n_units, n_words))
