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

    classifier, loops, losses, normalization, iterators, chainermn_scripts, updaters,
    own_updaters, minibatches, examples, evaluators, snapshots, devices, hooks, folders,
    prints, remains

All of it is pure: source in, source out.
"""
