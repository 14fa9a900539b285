"""Networks over graphs, clouds of points and molecules."""

from benchmarks.old_repositories.made_up import arrays
from benchmarks.old_repositories.program import Program, Repository

PROGRAMS = (
    Program(
        "pfnet-research/chainer-graph-cnn",
        "d7dc17d1a6e8",
        kind="graph",
        chainer="1.19",
        command="tools/train.py -c configs/default.json -o result -e 1 -g -1",
        # An array is made of rows of several lengths.
        needs=("numpy<1.24", "scipy<1.12", "scikit-learn<1.4"),
        steps=4,
    ),
    Program(
        "corochann/chainer-pointnet",
        "4b0350122c6a",
        kind="point cloud",
        chainer="4",
        command="experiments/modelnet40/train.py -b 4 --num_point 128",
        data=(arrays.clouds("experiments/modelnet40/data/modelnet40_ply_hdf5_2048"),),
        needs=("pandas", "scikit-learn", "tqdm"),
        beside=(Repository("corochann/chainerex", "15efb34a8fa6"),),
        steps=6,
    ),
    Program(
        "Obarads/PointNet_AutoEncoder_chainer",
        "7134e6279449",
        kind="point cloud",
        chainer="5",
        command="with_model.py models.pointnet_ae"
        " 'PointNetAE(3, use_bn=True, output_points=64)' f4:4,3,64,1 f4:4,3,64,1",
        steps=6,
    ),
    Program(
        "koreyou/stochastic-gcn-chainer",
        "a891ee0136f3",
        kind="graph",
        chainer="5",
        command="train.py",
        beyond="an extension of its own in C++",
    ),
    Program(
        "pfnet-research/BMI219-2017-ProteinFolding",
        "bbfec3ac860b",
        kind="proteins",
        chainer="1",
        command="tools/train.py --gpu -1 --batchsize 2 --rnn-dim 32"
        " --train-file train.npy --validate-file validate.npy",
        data=(
            arrays.one_hot_blocks("train.npy", 16, 700, [22, 9, 26]),
            arrays.one_hot_blocks("validate.npy", 4, 700, [22, 9, 26]),
        ),
        steps=4,
        # rnn.py:34 reads the variable of the list in the line before.
        beyond="Python 2",
    ),
    Program(
        "pfnet-research/graph-nvp",
        "e91e232c37a1",
        kind="molecules",
        chainer="6",
        command="with_model.py graph_nvp.models.relgcn"
        " 'RelGCN(16, 4, [8, 16], input_type=\"float\")' f4:4,9,5 f4:4,4,9,9",
        needs=("rdkit", "tqdm", "tabulate", "chainer-chemistry"),
        steps=10,
    ),
)
