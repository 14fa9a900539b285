"""Networks that generate images: adversarial, variational, invertible."""

import json

from benchmarks.old_repositories.made_up import texts
from benchmarks.old_repositories.program import Program

SETTINGS = {
    "zdim": 20,
    "optimizer": {"alpha": 1e-4, "beta1": 0.5},
    "weight_decay": 1e-5,
    "normal_dig": [1, 7],
    "batch_size": 32,
    "epoch": 1,
}

PROGRAMS = (
    Program(
        "pfnet-research/chainer-gan-lib",
        "cf9efba5b166",
        kind="GAN",
        chainer="4",
        command="train.py -a wgan_gp --gpu -1 --batchsize 8",
        beyond="modules that its repository lacks",
        steps=12,
    ),
    Program(
        "t2kasa/acgan_chainer",
        "053bfafbc86f",
        kind="GAN",
        chainer="4",
        command="train_main.py --device -1 --batch_size 16",
        steps=10,
    ),
    Program(
        "t2kasa/wgan_gp_chainer",
        "2e71632795c6",
        kind="GAN",
        chainer="4",
        command="train_wgan_gp_cifar10.py --gpu -1 --batch_size 8",
        needs=("chainerui", "sqlalchemy<2"),
        steps=12,
    ),
    Program(
        "kzkadc/anogan_chainer",
        "fa5eefc5cc09",
        kind="GAN",
        chainer="5",
        command="train_gan.py -s setting_made_up.json -r result",
        data=(texts.lines("setting_made_up.json", [json.dumps(SETTINGS)]),),
        needs=("opencv-python-headless",),
    ),
    Program(
        "hvy/chainer-began",
        "8a9df2d3e0fd",
        kind="GAN",
        chainer="2",
        command="train.py --dataset cifar10 --batch-size 4 --g-n 8 --d-n 8",
        steps=10,
    ),
    Program(
        "soskek/vqvae_chainer",
        "f2c587cc1b26",
        kind="VAE",
        chainer="3",
        command="train_vae.py --vqvae",
    ),
    Program(
        "kcct-fujimotolab/chainer-image-gen-nets",
        "96736f27c92b",
        kind="VAE",
        chainer="1",
        command="gennet/train_vae.py --use-mnist",
        needs=("slacker",),
    ),
    Program(
        "nel215/chainer-iaf",
        "d47879de826e",
        kind="VAE",
        chainer="3",
        # The number of a GPU is written into its script.
        command="train.py",
        steps=10,
    ),
    Program(
        "takyamamoto/CIFAR-ConvolutionalAutoEncoder-Chainer",
        "0e69bfc49c63",
        kind="autoencoder",
        chainer="4",
        command="train.py -b 16",
        needs=("tqdm",),
        steps=10,
    ),
    Program(
        "musyoku/chainer-glow-mnist",
        "b24e71ead32f",
        kind="normalizing flow",
        chainer="5",
        command="train.py -gpu -1 -b 8 -depth 2 -levels 2 -nn 32",
        folder="run",
        needs=("tabulate",),
        steps=6,
    ),
    Program(
        "musyoku/adversarial-autoencoder",
        "222052dc48ff",
        kind="autoencoder",
        chainer="2",
        command="train.py -g -1 -b 32",
        folder="run/unsupervised/dim_reduction",
    ),
)
