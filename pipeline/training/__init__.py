"""Chainer's trainer on a pipeline.

::

    updater         steps of minibatches
    arguments       arguments of the updater that one rank can check alone
    one_trainer     the trainers of all ranks as one
    lasting_reports Chainer's reports, which end no training on a full disk
    late_reports    Chainer's reports, one minibatch later
    trigger_texts   triggers as texts, equal if they fire at the same minibatches
    shared_reports  values that extensions report, on all ranks
    confirmed_updates  updates that are confirmed before extensions read parameters
    sharing_place   the place among extensions where ranks share these values
    evaluator       a whole data set, forward only
    minibatches     minibatches from one iterator, for the ranks that use them
    shuffle         an order of samples that can be resumed
    measures        the cost of every minibatch, for the log
    timeline_report pictures of training steps
    logger_report   the log for other loggers
    signals         stopping from outside, all ranks at the same minibatch
    obey_orders     snapshots and stops on the orders of "divisible control"
    control_files   the files of these orders and of their answers
"""
