"""Snapshots: a training run on disk, by layer, to be resumed on any number of ranks.

::

    extension     saves and resumes, as an extension of Chainer's trainer
    saving        saves from all ranks into a new directory
    loading       loads from a directory, on as many ranks as there are
    tools         cuts anew, exports and imports, without training

    background    snapshots that are written while the training goes on
    writing       what a rank has to save, and the writing of it
    layers        the state of layers
    optimizers    the state of optimizers, and whose it is
    objects       the state of what belongs to no layer, and of random generators
    serializers   Chainer's, without objects to pickle, and dry

    finding       the newest whole one, and old ones that go
    directories   complete, or not there; one run saves there
    files         the files of a snapshot, and the manifest
    arrays        the arrays in files, by key
    names         which are refused, and how they are found
    errors        SnapshotError, and differences that one names
"""
