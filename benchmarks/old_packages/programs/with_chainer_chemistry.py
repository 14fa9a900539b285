"""Trains a graph network of chainer-chemistry on three molecules."""

import chainer
import numpy as np
from chainer_chemistry.dataset.converters import concat_mols
from chainer_chemistry.dataset.preprocessors import GGNNPreprocessor
from chainer_chemistry.models import GGNN
from chainer_chemistry.models.prediction import Regressor
from rdkit import Chem

preprocessor = GGNNPreprocessor()
features = []
for smiles in ("CCO", "c1ccccc1", "CC(=O)O"):
    molecule = Chem.MolFromSmiles(smiles)
    features.append(preprocessor.get_input_features(molecule))
samples = [(*each, np.array([i], "f")) for i, each in enumerate(features)]
model = Regressor(GGNN(out_dim=1, hidden_channels=8, n_update_layers=2))
optimizer = chainer.optimizers.Adam(1e-2).setup(model)
losses = []
for _ in range(20):
    optimizer.update(model, *concat_mols(samples))
    losses.append(float(model.loss.array))
assert losses[-1] < losses[0]
