"""Snapshots: a training run on disk, by layer, which any number of ranks can resume.

::

    extension     saves and resumes, as an extension of Chainer's trainer
    saving        saves from all ranks into a new directory
    loading       loads from a directory, on the present number of ranks
    restoring     the state of a run, restored from a snapshot that fits it
    repartitioning  a snapshot with other cuts, without training
    npz_files     files of the undivided model, exported and imported

    trainers      the parts of a trainer that extensions need
    background    snapshots that are written while training continues
    writing       arrays that a rank has to save, and their files
    layers        the state of layers
    optimizers    the state of optimizers, by the layers that they update
    objects       the state of trainers, iterators and random generators
    serializers   Chainer's serializers without pickled objects, and dry runs

    finding       finds the newest complete snapshot, and removes old ones
    directories   makes a directory appear complete; locks it for one run
    files         the files of a snapshot, and the manifest
    arrays        the arrays in files, by key
    names         valid names, and a search for them on disk
    product_dtypes  the dtype of products, kept and compared
    roundings     the dtypes of activations, compared
    errors        SnapshotError, and the differences that it lists
"""
