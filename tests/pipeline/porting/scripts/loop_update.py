#!/usr/bin/env python
# A loop without a trainer, as scripts had before there were trainers.
import argparse

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import Variable, optimizers, serializers

parser = argparse.ArgumentParser()
parser.add_argument('--gpu', type=int, default=-1)
parser.add_argument('--out', default='.')
args = parser.parse_args()

if args.gpu >= 0:
    chainer.cuda.get_device_from_id(args.gpu).use()
xp = chainer.cuda.cupy if args.gpu >= 0 else np
np.random.seed(4)

batchsize = 20
n_epoch = 2


class Net(chainer.Chain):
    def __init__(self):
        super().__init__(l1=L.Linear(784, 16), l2=L.Linear(16, 10))

    def __call__(self, x):
        return self.l2(F.relu(self.l1(x)))


train, test = chainer.datasets.get_mnist()
x_train, y_train = chainer.dataset.concat_examples(train)
x_test, y_test = chainer.dataset.concat_examples(test)
N, N_test = len(y_train), len(y_test)

model = L.Classifier(Net())
if args.gpu >= 0:
    model.to_gpu()
optimizer = optimizers.Adam()
optimizer.setup(model)

for epoch in range(1, n_epoch + 1):
    print('epoch', epoch)

    # training
    perm = np.random.permutation(N)
    sum_accuracy = 0
    sum_loss = 0
    for i in range(0, N, batchsize):
        x = Variable(xp.asarray(x_train[perm[i:i + batchsize]]))
        t = Variable(xp.asarray(y_train[perm[i:i + batchsize]]))

        # Pass the loss function (Classifier defines it) and its arguments
        optimizer.update(model, x, t)

        sum_loss += float(model.loss.data) * len(t.data)
        sum_accuracy += float(model.accuracy.data) * len(t.data)
    print(f'train mean loss={sum_loss / N}, accuracy={sum_accuracy / N}')

    # evaluation
    sum_accuracy = 0
    sum_loss = 0
    for i in range(0, N_test, batchsize):
        x = Variable(xp.asarray(x_test[i:i + batchsize]))
        t = Variable(xp.asarray(y_test[i:i + batchsize]))
        with chainer.using_config('train', False):
            loss = model(x, t)
        sum_loss += float(loss.data) * len(t.data)
        sum_accuracy += float(model.accuracy.data) * len(t.data)
    print(f'test  mean loss={sum_loss / N_test}, accuracy={sum_accuracy / N_test}')

# Save the model and the optimizer
print('save the model')
serializers.save_npz(args.out + '/mlp.model', model)
print('save the optimizer')
serializers.save_npz(args.out + '/mlp.state', optimizer)
