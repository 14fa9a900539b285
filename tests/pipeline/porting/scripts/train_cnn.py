"""A convolutional network with batch normalization."""
import argparse
import random

import chainer
import numpy
from chainer import cuda, iterators, optimizers, training
from chainer.links import Classifier
from chainer.training.extensions import (
    Evaluator,
    ExponentialShift,
    LogReport,
    PrintReport,
    snapshot,
    snapshot_object,
)
from convnet import ConvNet


def reset_seed(seed):
    random.seed(seed)
    numpy.random.seed(seed)
    if cuda.available:
        cuda.cupy.random.seed(seed)


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--gpu', type=int, default=-1)
    parser.add_argument('--batch', type=int, default=20)
    parser.add_argument('--epoch', type=int, default=2)
    parser.add_argument('--out', default='result')
    args = parser.parse_args()

    reset_seed(1)
    train, test = chainer.datasets.get_mnist(ndim=3)
    model = Classifier(ConvNet(10))
    if args.gpu >= 0:
        cuda.get_device(args.gpu).use()
        model.to_gpu(args.gpu)

    optimizer = optimizers.MomentumSGD(lr=0.05, momentum=0.9)
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(5e-4))

    train_iter = iterators.SerialIterator(train, args.batch)
    test_iter = iterators.SerialIterator(test, args.batch, False, False)
    updater = training.StandardUpdater(
        train_iter, optimizer, device=args.gpu)
    trainer = training.Trainer(updater, (args.epoch, 'epoch'), args.out)
    trainer.extend(Evaluator(test_iter, model, device=args.gpu))
    trainer.extend(ExponentialShift('lr', 0.5), trigger=(1, 'epoch'))
    trainer.extend(snapshot(filename='state_{.updater.epoch}'))
    trainer.extend(
        snapshot_object(model, 'model_{.updater.epoch}'), trigger=(1, 'epoch'))
    trainer.extend(LogReport(trigger=(1, 'epoch')))
    trainer.extend(PrintReport(['epoch', 'main/loss', 'validation/main/loss']))
    trainer.run()
