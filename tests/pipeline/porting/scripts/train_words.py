"""A language model that reads the words before a word."""
import argparse

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import reporter, training
from chainer.training import extensions


class WordModel(chainer.Chain):
    """Predicts the next word from a window of words."""

    def __init__(self, n_vocab, n_units):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(n_vocab, n_units)
            self.l1 = L.Linear(None, n_units)
            self.l2 = L.Linear(n_units, n_vocab)

    def forward(self, x, t):
        e = self.embed(x)
        h = F.tanh(self.l1(e))
        y = self.l2(h)
        loss = F.softmax_cross_entropy(y, t)
        accuracy = F.accuracy(y, t)
        reporter.report({'loss': loss, 'accuracy': accuracy}, self)
        return loss


class WindowUpdater(training.updaters.StandardUpdater):
    """Makes arrays of the windows."""

    def __init__(self, train_iter, optimizer, device):
        super().__init__(train_iter, optimizer, device=device)

    def update_core(self):
        train_iter = self.get_iterator('main')
        optimizer = self.get_optimizer('main')
        batch = train_iter.__next__()

        # words before the last one, and the last one
        windows = np.array(batch, np.int32)
        x = windows[:, :-1]
        t = windows[:, -1]

        loss = optimizer.target(x, t)
        optimizer.target.cleargrads()
        loss.backward()
        optimizer.update()


def compute_perplexity(result):
    result['perplexity'] = np.exp(result['main/loss'])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--gpu', '-g', type=int, default=-1)
    parser.add_argument('--window', '-w', type=int, default=4)
    parser.add_argument('--out', '-o', default='result')
    args = parser.parse_args()

    np.random.seed(6)
    words = np.random.RandomState(0).randint(0, 11, 204) // 2 * 2
    train = [words[i:i + args.window + 1] for i in range(200)]

    model = WordModel(11, 9)
    optimizer = chainer.optimizers.SGD(lr=0.5)
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer.GradientClipping(1.0))

    train_iter = chainer.iterators.SerialIterator(train, 16)
    updater = WindowUpdater(train_iter, optimizer, args.gpu)
    trainer = training.Trainer(updater, (2, 'epoch'), out=args.out)
    interval = 5
    trainer.extend(extensions.LogReport(postprocess=compute_perplexity,
                                        trigger=(interval, 'iteration')))
    trainer.extend(extensions.PrintReport(
        ['epoch', 'iteration', 'perplexity', 'main/accuracy']),
        trigger=(interval, 'iteration'))
    trainer.run()


if __name__ == '__main__':
    main()
