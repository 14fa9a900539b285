"""Chains in the style of public code for Chainer 1 to 4: they define __call__."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np


def numbers(*shape):
    return np.random.RandomState(0).normal(size=shape).astype(np.float32)


def words(n_samples, length, n_words=11, padded=True):
    random = np.random.RandomState(1)
    found = random.randint(0, n_words, (n_samples, length)).astype(np.int32)
    if padded:
        for i in range(n_samples):
            found[i, length - i % 3 :] = -1
    return found


class ConvNorm(chainer.Chain):
    def __init__(self, n_in, n_out, stride=1):
        super().__init__(
            conv=L.Convolution2D(n_in, n_out, 3, stride, 1, nobias=True),
            bn=L.BatchNormalization(n_out),
        )

    def __call__(self, x):
        return self.bn(self.conv(x))


class ResidualBlock(chainer.Chain):
    def __init__(self, n_in, n_out, stride=1):
        super().__init__(
            first=ConvNorm(n_in, n_out, stride),
            second=ConvNorm(n_out, n_out),
            shortcut=L.Convolution2D(n_in, n_out, 1, stride),
        )

    def __call__(self, x, train=True):
        h = F.relu(self.first(x))
        return F.relu(self.second(h) + self.shortcut(x))


class ResNet(chainer.Chain):
    """A residual net, whose blocks are a ChainList that the forward loops over."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.stem = ConvNorm(3, 4)
            self.blocks = chainer.ChainList(
                ResidualBlock(4, 4), ResidualBlock(4, 6, stride=2)
            )
            self.fc = L.Linear(None, 5)

    def __call__(self, x, train=True):
        h = F.relu(self.stem(x))
        for block in self.blocks:
            h = block(h, train)
        return self.fc(F.average_pooling_2d(h, h.shape[2:]))


class Capsules(chainer.Chain):
    """Primary and digit capsules with two rounds of routing."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(1, 4, 3)
            self.primary = L.Convolution2D(4, 6, 3, stride=2)
            self.routing = Routing(n_in=8, d_in=3, n_out=4, d_out=5)

    def __call__(self, x):
        h = self.primary(F.relu(self.conv(x)))
        h = F.reshape(h, (x.shape[0], -1, 3))
        v = self.routing(squash(h))
        return F.sqrt(F.sum(v**2, axis=2) + 1e-8)


def squash(x):
    norm = F.sum(x**2, axis=2, keepdims=True)
    return F.broadcast_to(F.sqrt(norm + 1e-8) / (1 + norm), x.shape) * x


class Routing(chainer.Chain):
    """A chain with a parameter of its own, which its __call__ reads."""

    def __init__(self, n_in, d_in, n_out, d_out):
        super().__init__()
        with self.init_scope():
            self.W = chainer.Parameter(
                chainer.initializers.Normal(0.3), (1, n_in, n_out, d_in, d_out)
            )

    def __call__(self, u):
        n, n_in, d_in = u.shape
        _, _, n_out, _, d_out = self.W.shape
        u = F.broadcast_to(u[:, :, None, :, None], (n, n_in, n_out, d_in, d_out))
        u = F.sum(u * F.broadcast_to(self.W, u.shape), axis=3)
        logits = self.xp.zeros((n, n_in, n_out), np.float32)
        for _ in range(2):
            c = F.broadcast_to(F.softmax(logits, axis=2)[..., None], u.shape)
            v = squash(F.sum(c * u, axis=1))
            logits = logits + F.sum(F.broadcast_to(v[:, None], u.shape) * u, axis=3)
        return v


class VAE(chainer.Chain):
    """An autoencoder whose call decodes the mean, as Chainer's example."""

    def __init__(self):
        super().__init__(
            le1=L.Linear(8, 6), le2_mu=L.Linear(6, 3), ld1=L.Linear(3, 6),
            ld2=L.Linear(6, 8),
        )  # fmt: skip

    def __call__(self, x, sigmoid=True):
        return self.decode(self.encode(x), sigmoid)

    def encode(self, x):
        return self.le2_mu(F.tanh(self.le1(x)))

    def decode(self, z, sigmoid=True):
        h = self.ld2(F.tanh(self.ld1(z)))
        return F.sigmoid(h) if sigmoid else h


class Encoder(chainer.Chain):
    """A recurrent encoder, which resets its state and loops over the words."""

    def __init__(self):
        super().__init__(embed=L.EmbedID(11, 6, ignore_label=-1), lstm=L.LSTM(6, 6))

    def __call__(self, x):
        self.lstm.reset_state()
        for word in x.T:
            h = self.lstm(self.embed(word))
        return h


class Seq2Seq(chainer.Chain):
    """An encoder, and a decoder of one step, with an optional context."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.encoder = Encoder()
            self.attend = Attend()
            self.out = L.Linear(6, 11)

    def __call__(self, x):
        return self.out(F.dropout(self.attend(self.encoder(x), None), 0.0))


class Attend(chainer.Chain):
    def __init__(self):
        super().__init__(a=L.Linear(6, 6))

    def __call__(self, h, context=None):
        h = F.tanh(self.a(h))
        return h if context is None else h + context


class WaveBlock(chainer.Chain):
    def __init__(self, dilation):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(
                4, 8, (2, 1), pad=(dilation, 0), dilate=(dilation, 1)
            )
            self.res, self.skip = L.Convolution2D(4, 4, 1), L.Convolution2D(4, 6, 1)

    def __call__(self, x):
        h = self.conv(x)[:, :, : x.shape[2]]
        a, b = F.split_axis(h, 2, axis=1)
        z = F.tanh(a) * F.sigmoid(b)
        return x + self.res(z), self.skip(z)


class WaveNet(chainer.Chain):
    """Blocks with two outputs, whose skips are added up."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed = L.Convolution2D(1, 4, 1)
            self.one, self.two, self.three = (WaveBlock(2**i) for i in range(3))
            self.out = L.Convolution2D(6, 5, 1)

    def __call__(self, x):
        h, skips = self.embed(x), []
        for block in (self.one, self.two, self.three):
            h, skip = block(h)
            skips.append(skip)
        return self.out(F.relu(sum(skips[1:], skips[0])))[:, :, -1, 0]


class Highway(chainer.Chain):
    def __init__(self, n):
        super().__init__(plain=L.Linear(n, n), gate=L.Linear(n, n))

    def __call__(self, x):
        t = F.sigmoid(self.gate(x))
        return F.relu(self.plain(x)) * t + x * (1 - t)


class HighwayNet(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first, self.last = L.Linear(8, 6), L.Linear(6, 4)
            for i in range(3):
                setattr(self, f"highway{i}", Highway(6))

    def __call__(self, x):
        h = F.relu(self.first(x))
        for i in range(3):
            h = self[f"highway{i}"](h)
        return self.last(h)


class CharCNN(chainer.Chain):
    """Convolutions of several widths over characters, and a maximum over time."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(11, 5, ignore_label=-1)
            self.conv2 = L.Convolution2D(1, 4, (2, 5))
            self.conv3 = L.Convolution2D(1, 4, (3, 5))
            self.out = L.Linear(8, 3)

    def __call__(self, x):
        e = self.embed(x)
        e = F.reshape(e, (e.shape[0], 1, e.shape[1], e.shape[2]))
        h = [F.max(F.relu(c(e)), axis=(2, 3)) for c in (self.conv2, self.conv3)]
        return self.out(F.dropout(F.concat(h), 0.0))


class Attention(chainer.Chain):
    def __init__(self, n):
        super().__init__(qkv=L.Linear(n, 3 * n), out=L.Linear(n, n))

    def __call__(self, x, mask):
        n, length, size = x.shape
        h = F.reshape(self.qkv(F.reshape(x, (-1, size))), (n, length, 3 * size))
        q, k, v = F.split_axis(h, 3, axis=2)
        a = F.matmul(q, k, transb=True) / size**0.5
        low = self.xp.full(a.shape, -1e9, np.float32)
        a = F.softmax(F.where(mask, a, low), axis=2)
        return F.reshape(self.out(F.reshape(F.matmul(a, v), (-1, size))), x.shape)


class Transformer(chainer.Chain):
    """Words with padding, positions, and a mask of history, made of the input."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(11, 6, ignore_label=-1)
            self.positions = L.EmbedID(20, 6)
            self.one, self.two = Attention(6), Attention(6)
            self.out = L.Linear(6, 11)

    def make_mask(self, x):
        valid = (x >= 0)[:, None, :] * (x >= 0)[:, :, None]
        steps = self.xp.arange(x.shape[1])
        history = (steps[None, :] <= steps[:, None])[None]
        return valid * self.xp.broadcast_to(history, (len(x),) + history.shape[1:])

    def __call__(self, x):
        mask = self.make_mask(x)
        steps = self.xp.arange(x.shape[1], dtype=np.int32)
        h = self.embed(x) + self.positions(self.xp.broadcast_to(steps, x.shape))
        h = h + self.one(h, mask)
        h = h + self.two(h, mask=mask)
        n = (x >= 0).sum(axis=1, keepdims=True).astype(np.float32)
        h = h * (x >= 0)[:, :, None].astype(np.float32)
        return self.out(F.sum(h, axis=1) / F.broadcast_to(n, (len(x), 6)))


class UNet(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.down1, self.down2 = ConvNorm(3, 4), ConvNorm(4, 6)
            self.bottom = ConvNorm(6, 6)
            self.up2 = L.Deconvolution2D(6, 4, 2, stride=2)
            self.up1 = L.Deconvolution2D(10, 4, 2, stride=2)
            self.out = L.Convolution2D(8, 2, 1)

    def __call__(self, x):
        d1 = F.relu(self.down1(x))
        d2 = F.relu(self.down2(F.max_pooling_2d(d1, 2)))
        h = F.relu(self.bottom(F.max_pooling_2d(d2, 2)))
        h = F.concat([d2, F.pad(self.up2(h), [(0, 0)] * 4, "constant")])
        return self.out(F.concat([d1, self.up1(h)]))


class Generator(chainer.Chain):
    """The generator of a DCGAN: dense, then deconvolutions and normalizations."""

    def __init__(self):
        super().__init__()
        w = chainer.initializers.Normal(0.05)
        with self.init_scope():
            self.l0 = L.Linear(5, 2 * 2 * 8, initialW=w)
            self.bn0 = L.BatchNormalization(2 * 2 * 8)
            self.dc1 = L.Deconvolution2D(8, 4, 4, 2, 1, initialW=w)
            self.bn1 = L.BatchNormalization(4)
            self.dc2 = L.Deconvolution2D(4, 3, 4, 2, 1, initialW=w)

    def __call__(self, z):
        h = F.reshape(F.relu(self.bn0(self.l0(z))), (len(z), 8, 2, 2))
        h = F.relu(self.bn1(self.dc1(h)))
        return F.sigmoid(self.dc2(h))


#: Class of the chain, and an example, by name.
MODELS = {
    "resnet": (ResNet, numbers(4, 3, 8, 8)),
    "capsules": (Capsules, numbers(4, 1, 7, 7)),
    "vae": (VAE, numbers(4, 8)),
    "seq2seq": (Seq2Seq, words(4, 5)),
    "wavenet": (WaveNet, numbers(4, 1, 9, 1)),
    "highway": (HighwayNet, numbers(4, 8)),
    "char_cnn": (CharCNN, words(4, 9)),
    "transformer": (Transformer, words(4, 6)),
    "unet": (UNet, numbers(4, 3, 8, 8)),
    "dcgan": (Generator, numbers(4, 5)),
}
