import argparse

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.backends import cuda
from chainer.dataset import concat_examples


class MLP(chainer.Chain):
    def __init__(self, n_units, n_out):
        super().__init__()
        with self.init_scope():
            self.l1 = L.Linear(None, n_units)
            self.l2 = L.Linear(None, n_units)
            self.l3 = L.Linear(None, n_out)

    def forward(self, x):
        h = F.sigmoid(self.l1(x))
        return self.l3(F.sigmoid(self.l2(h)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--gpu', type=int, default=-1)
    parser.add_argument('--epoch', type=int, default=2)
    parser.add_argument('--out', default='.')
    args = parser.parse_args()
    np.random.seed(5)

    train, test = chainer.datasets.get_mnist()
    train_iter = chainer.iterators.SerialIterator(train, 25)
    test_iter = chainer.iterators.SerialIterator(test, 25, repeat=False, shuffle=False)

    net = MLP(14, 10)
    if args.gpu >= 0:
        net.to_gpu(args.gpu)
    optimizer = chainer.optimizers.MomentumSGD(0.1)
    optimizer.setup(net)
    optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(0.5))

    while train_iter.epoch < args.epoch:
        # ---------- One iteration of the training loop ----------
        train_batch = train_iter.next()
        image_train, target_train = concat_examples(train_batch, args.gpu)

        # Calculate the prediction of the network
        prediction_train = net(image_train)

        # Calculate the loss with softmax_cross_entropy
        loss = F.softmax_cross_entropy(prediction_train, target_train)

        # Calculate the gradients in the network
        net.cleargrads()
        loss.backward()

        # Update all the trainable parameters
        optimizer.update()
        # --------------------- until here ---------------------

        # Check the validation accuracy of prediction after every epoch
        if train_iter.is_new_epoch:
            print(f'epoch:{train_iter.epoch:02d} train_loss:{float(cuda.to_cpu(loss.array)):.6f} ', end='')

            test_losses = []
            test_accuracies = []
            for test_batch in test_iter:
                image_test, target_test = concat_examples(test_batch, args.gpu)
                with chainer.using_config('train', False), chainer.no_backprop_mode():
                    prediction_test = net(image_test)
                    loss_test = F.softmax_cross_entropy(prediction_test, target_test)
                    accuracy = F.accuracy(prediction_test, target_test)
                test_losses.append(cuda.to_cpu(loss_test.array))
                accuracy.to_cpu()
                test_accuracies.append(accuracy.array)
            test_iter.reset()

            print(f'val_loss:{np.mean(test_losses):.6f} val_accuracy:{np.mean(test_accuracies):.6f}')


if __name__ == '__main__':
    main()
