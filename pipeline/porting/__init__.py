"""Training scripts rewritten for a pipeline: the command ``divisible port``.

::

    porting             a script in, its port and findings out
    catalogue           the rules, one for each noun
    script              a script that is read, and not run
    neighbours          modules beside the script that it imports
    parts               its model, optimizer, iterator and updater
    values              where the values of a variable are from
    chain_classes       the class of its model, in the script or beside it
    statements          statements of a method: what they read and store
    edits, findings     changes of the source, and their reasons

    updaters            StandardUpdater and ParallelUpdater
    own_updaters        updaters of the script's own
    loops               loops without an updater
    minibatches         the statements of such a loop that compute one loss
    examples            a small minibatch from such a loop, for from_chain
    classifier          Classifier
    losses              chains that compute their own loss
    normalization       layers whose results depend on microbatches
    iterators           iterators
    evaluators          Evaluator
    snapshots           snapshots, and files that are loaded and saved
    hooks               hooks of optimizers
    devices             devices
    folders             folders, which all ranks make
    prints              prints
    chainermn_scripts   scripts of ChainerMN
    remains             other uses of the model

All of it is pure: source in, source out.
"""
