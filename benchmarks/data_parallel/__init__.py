"""Exchange of gradients between replicas: its speed, and its effect on training.

::

    exchange           the mean of an array over hosts, by wire dtype: time and bytes
    turns              what the hosts do for it
    coding             encoding and decoding alone
    training           steps of whole networks on hosts, and their speed-ups
    replicas           what the hosts do for it
    networks           these networks
    grid               replicas of a pipeline: the hidden part of the exchange
    grid_ranks         what the ranks of such grids do
    on_gpu             coding and exchange of gradients on a GPU
    accuracy           what few bits do to the accuracy of a small network
    simulated          replicas in one process, for it
    replica_gradients  the gradients of replicas whose samples do not affect each other
    distribution       gradients against the ranges of formats
    plots              its figures
    digits             the images that all of them read
"""
