"""Trains a PyTorch model: mpiexec -n 2 python examples/torch_modules/train.py.

It needs PyTorch: pip install 'divisible[torch]'.
"""

import numpy as np
import torch
from mpi4py import MPI
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from pipeline import Pipeline
from torch_layers import TorchLoss, TorchOptimizer, from_torch

torch.manual_seed(0)  # the same weights, and below the same order, on every rank
np.random.seed(0)
net = nn.Sequential(
    nn.Unflatten(1, (1, 8, 8)),
    nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
    nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.2),
    nn.Linear(256, 10),
)
x, x_test, t, t_test = train_test_split(*load_digits(return_X_y=True), random_state=0)
pipe = Pipeline(
    from_torch(net),
    MPI.COMM_WORLD,
    n_microbatches=4,
    lossfun=TorchLoss(nn.CrossEntropyLoss()),
)
optimizer = pipe.setup(TorchOptimizer(torch.optim.AdamW, lr=0.003))
scheduler = optimizer.scheduler(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=5)
for epoch in range(1, 6):
    for batch in np.array_split(np.random.permutation(len(x)), 20):
        pipe.step(np.float32(x[batch]), t[batch])
        optimizer.update()
    scheduler.step()
    accuracy = pipe.evaluate(np.float32(x_test), t_test)["accuracy"]
    if pipe.is_first:
        print(f"epoch {epoch}: test accuracy {accuracy:.1%}", flush=True)
