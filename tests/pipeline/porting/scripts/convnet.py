import chainer
import chainer.functions as F
import chainer.links as L


class Block(chainer.Chain):

    def __init__(self, n_out, ksize):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(None, n_out, ksize, pad=1, nobias=True)
            self.bn = L.BatchNormalization(n_out)

    def __call__(self, x):
        return F.relu(self.bn(self.conv(x)))


class ConvNet(chainer.Chain):

    def __init__(self, n_class):
        super().__init__(
            block1=Block(4, 3),
            block2=Block(6, 3),
            fc=L.Linear(None, n_class),
        )

    def __call__(self, x):
        h = F.max_pooling_2d(self.block1(x), 2)
        h = F.max_pooling_2d(self.block2(h), 2)
        return self.fc(h)
