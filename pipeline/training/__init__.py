"""Chainer's trainer on a pipeline.

::

    updater         steps of minibatches
    one_trainer     the trainers of all ranks as one
    lasting_reports Chainer's reports, which end no training on a full disk
    shared_reports  what extensions report, on all ranks
    sharing_place   where among the extensions that happens
    evaluator       a whole data set, forward only
    minibatches     from one iterator to the ranks that use them
    shuffle         an order of samples that can be resumed
    measures        the cost of every minibatch, for the log
    signals         stopping from outside, all ranks at the same minibatch
"""
