"""Copies of a training run in the memory of hosts, which outlive a lost rank or host.

A copy is a snapshot (:mod:`pipeline.snapshots`) whose files lie in the memory of
several hosts. Each rank writes its files for its own host, and sends them to a partner
on another host while the next minibatch is computed::

    host a   rank 0: its files ----.    the files of rank 2
    host b   rank 1: its files --. '--> the files of rank 0
    host c   rank 2: its files   '----> the files of rank 1

    extension   copies and resumes, as an extension of Chainer's trainer
    pace        the number of minibatches between copies, chosen by their cost
    copies      the copies of a pipeline: save, load, free
    gathering   finds the newest whole copy, and sends hosts the files that they lack
    writing     this rank's part of a copy
    room        the memory that copies need
    places      folders of copies in memory, and who may remove them
    opening     these folders, made on all ranks together
    sending     files that are under way between ranks
    partners    which rank has the second copy of another
"""
