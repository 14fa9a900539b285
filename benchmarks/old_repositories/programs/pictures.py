"""Networks from pictures to pictures, boxes, and the next picture of a film."""

from benchmarks.old_repositories.made_up import arrays, images, texts
from benchmarks.old_repositories.program import Program

CAMVID = [f"x/{i:04d}.png y/{i:04d}.png" for i in range(16)]

PROGRAMS = (
    Program(
        "tsurumeso/waifu2x-chainer",
        "fbd2f20ec05f",
        kind="super-resolution",
        chainer="5",
        # The package wand loads the library of ImageMagick: libmagickwand of Debian.
        # Each run draws other samples.
        command="train.py -d made_up -p 8 -b 8 --out_size 32",
        data=(images.pictures("made_up", 40, (128, 128)),),
        needs=("wand",),
        steps=16,
    ),
    Program(
        "takyamamoto/PredNet_Chainer",
        "0bc4234eb593",
        kind="video prediction",
        chainer="4",
        command="train.py -g -1 -b 1",
        data=(
            arrays.array("X_train.npy", (40, 128, 160, 3), "uint8", 255.99),
            arrays.array("X_val.npy", (10, 128, 160, 3), "uint8", 255.99),
        ),
        needs=("opencv-python-headless", "tqdm"),
        steps=2,
        # Its network makes its states by cuda.cupy. With the mode cpu of chainer_compat
        # two steps were not done in five minutes.
        beyond="a GPU",
    ),
    Program(
        "pfnet-research/chainer-segnet",
        "af710ecdc310",
        kind="segmentation",
        chainer="1.17",
        command="train.py --gpus -1 --batchsize 2 --shift_jitter 0 --scale_jitter 0"
        " --train_depth 2 --n_mid 16",
        data=(
            images.pictures("data/train", 16, (64, 64)),
            images.pictures("data/val", 16, (64, 64)),
            images.classes("data/trainannot", 16, (64, 64), 12),
            images.classes("data/valannot", 16, (64, 64), 12),
            texts.lines("data/train_freq.csv", [",".join(["1.0"] * 12)]),
            texts.lines("data/train.txt", CAMVID),
            texts.lines("data/val.txt", CAMVID),
        ),
        needs=("opencv-python-headless",),
        steps=6,
    ),
    Program(
        "k3nt0w/chainer_fcn",
        "7f656d4d5780",
        kind="segmentation",
        chainer="1",
        command="train.py -tr made_up/ -ta labels/ -tt train_made_up.txt",
        data=(
            images.pictures("made_up", 4, (256, 256), "jpg"),
            images.classes("labels", 4, (256, 256), 21),
            texts.lines("train_made_up.txt", [f"{i:04d}" for i in range(4)]),
            arrays.folder("weight"),
        ),
        steps=2,
    ),
    Program(
        "wkentaro/chainer-cyclegan",
        "64b811773802",
        kind="GAN of image pairs",
        chainer="4",
        command="with_model.py chainer_cyclegan.models 'ResnetGenerator()'"
        " f4:1,3,64,64",
        needs=("chainercv", "fcn", "scikit-image", "opencv-python-headless"),
        steps=4,
    ),
    Program(
        "briongloid/YOLOv3-chainer",
        "e1f168ec12f6",
        kind="detection",
        chainer="4",
        command="with_model.py lib.links.yolov3 'YOLOv3(3)' f4:1,3,96,96",
        beyond="an extension of its own in Cython",
        steps=3,
    ),
    Program(
        "Hakuyume/chainer-ssd",
        "7b157ddb4c62",
        kind="detection",
        chainer="1",
        command="with_model.py lib 'SSD300(20)' f4:1,3,300,300",
        needs=("opencv-python-headless",),
        steps=2,
    ),
    Program(
        "higumachan/chainer-centernet",
        "4b74c86ff1a0",
        kind="detection",
        chainer="6",
        command="with_model.py centernet.models.networks.hourglass"
        ' \'HourglassNet({"hm": 3, "wh": 2, "offset": 2}, 1)\' f4:1,3,128,128',
        needs=("chainercv",),
        steps=2,
    ),
    Program(
        "ponta256/chainer_refinenet",
        "774bb943c433",
        kind="segmentation",
        chainer="2",
        command="with_model.py refinenet 'RefineResNet(5)' f4:1,3,64,64 'i4<5:1,64,64'",
        steps=2,
    ),
    Program(
        "yukitsuji/ENet_chainer",
        "fbbb68c77d07",
        kind="segmentation",
        chainer="3",
        command="with_model.py enet.models.enet_paper 'Block(16, 8, 16)' f4:2,16,32,32",
        needs=("chainercv",),
        steps=4,
    ),
    Program(
        "Idein/chainer-pose-proposal-net",
        "6f737a25579b",
        kind="poses",
        chainer="5",
        command="with_model.py network_resnet 'ResNet(n_layers=18)' f4:2,3,96,96",
        steps=3,
    ),
    Program(
        "Xiao-Ming/UNet-VocalSeparation-Chainer",
        "aba14f52c2ae",
        kind="source separation",
        chainer="3",
        command="with_model.py network 'UNet()' f4:1,1,128,128",
        needs=("librosa",),
        steps=4,
    ),
    Program(
        "raahii/3dgan-chainer",
        "2e02f0c678d6",
        kind="GAN of solids",
        chainer="2",
        command="with_model.py model.net 'Discriminator()' f4:2,1,64,64,64",
        steps=3,
    ),
    Program(
        "raahii/mocogan-chainer",
        "22ffeffdb431",
        kind="GAN of films",
        chainer="3",
        command="with_model.py model.net 'VideoDiscriminator()' f4:1,3,16,64,64",
        steps=3,
    ),
)
