"""Snapshots: a training run on disk, by layer, to be resumed on any number of ranks.

::

    saving                from all ranks into a new directory
    collecting            what a rank has to save
    writing               the files of a rank, the manifest, the name
    background            snapshots that are written while the training goes on
    writing_thread        a rank's thread that does it
    loading               from a directory, on as many ranks as there are
    dry_run               what tells what does not fit before anything is changed
    kept_state            what objects had before, to be put back
    extension             both, as an extension of Chainer's trainer
    tools                 cut anew, export and import, without training

    optimizers_of_stages  whose the state of an optimizer is
    layer_state           the state of layers, and of objects that belong to none
    optimizer_state       the state of optimizers
    state_shapes          what is saved beside parameters, in their shapes
    random_states         the random generators of a run
    resumed_trainers      trainers that are loaded before they run
    first_calls           layers that are sized, and register more, when they are called
    differences           what was saved and is not here, and the other way round
    serializers           Chainer's, without objects to pickle

    directories           complete, or not there; one run saves there
    finding               the newest whole one, and old ones that go
    names                 which are refused, and the pattern that finds them again
    listing               what is in a directory; an error where one cannot look
    files                 the files of a snapshot
    manifest              what says which they are, each field checked
    arrays                the arrays in files, by key
    noting_files          files that note why they could not be read
    errors                SnapshotError, and what kinds of it there are
"""
