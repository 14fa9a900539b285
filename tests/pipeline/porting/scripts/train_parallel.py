import argparse

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import training
from chainer.training import extensions


class Net(chainer.ChainList):
    def __init__(self, sizes):
        super().__init__(
            *[L.Linear(a, b) for a, b in zip(sizes, sizes[1:])])

    def forward(self, x):
        for layer in self[:-1]:
            x = F.tanh(layer(x))
        return self[-1](x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--gpu0', default='@numpy')
    parser.add_argument('--gpu1', default='@numpy')
    parser.add_argument('--epoch', type=int, default=2)
    parser.add_argument('--out', default='result_parallel')
    args = parser.parse_args()
    np.random.seed(3)

    model = L.Classifier(Net([784, 12, 12, 10]))
    optimizer = chainer.optimizers.SGD(lr=0.05)
    optimizer.setup(model)

    train, test = chainer.datasets.get_mnist()
    train_iter = chainer.iterators.SerialIterator(train, 30)
    test_iter = chainer.iterators.SerialIterator(test, 30,
                                                 repeat=False, shuffle=False)
    # ParallelUpdater implements the data-parallel gradient computation on
    # multiple GPUs. It accepts "devices" argument that specifies which GPU to
    # use.
    updater = training.updaters.ParallelUpdater(
        train_iter,
        optimizer,
        # The device of the name 'main' is used as a "master".
        devices={'main': args.gpu0, 'second': args.gpu1},
    )
    trainer = training.Trainer(updater, (args.epoch, 'epoch'), out=args.out)
    trainer.extend(extensions.Evaluator(test_iter, model, device=args.gpu0))
    trainer.extend(extensions.LogReport())
    trainer.run()


if __name__ == '__main__':
    main()
