import argparse

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import training
from chainer.training import extensions

parser = argparse.ArgumentParser()
parser.add_argument('--out', default='result')
args = parser.parse_args()


class Autoencoder(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.encoder = L.Linear(784, 12)
            self.decoder = L.Linear(12, 784)

    def forward(self, x, hidden=False):
        h = F.leaky_relu(self.encoder(x))
        return h if hidden else F.sigmoid(self.decoder(h))


np.random.seed(7)
images, _ = chainer.datasets.get_mnist(withlabel=False)
train = chainer.datasets.TupleDataset(images, images)

model = L.Classifier(Autoencoder(), lossfun=F.mean_squared_error)
model.compute_accuracy = False
optimizer = chainer.optimizers.Adam(alpha=0.01)
optimizer.setup(model)

updater = training.StandardUpdater(
    chainer.iterators.SerialIterator(train, batch_size=30), optimizer)
trainer = training.Trainer(updater, (2, 'epoch'), out=args.out)
trainer.extend(extensions.LogReport())
trainer.extend(extensions.ParameterStatistics(model))
trainer.run()

x = images[:4]
with chainer.using_config('train', False):
    y = model.predictor(x)
print(f'mean difference {float(np.abs(y.array - x).mean()):.6f}')
