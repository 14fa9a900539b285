"""Snapshots: a training run on disk, by layer, to be resumed on any number of ranks.

::

    files           the directory: there completely, or not at all
    state           what belongs into it, sorted by layer
    owners          whose the state of an optimizer is
    save_and_load   on all ranks together
    extension       as an extension of Chainer's trainer
    tools           to cut it anew, to export and import it, without training
"""
