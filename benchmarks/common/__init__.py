"""Parts that several benchmarks use.

::

    results     a result as a file of text, with command and machine
    hosts       options and jobs of benchmarks that run on emulated hosts
    on_host     what runs on such a host
    perceptron  the paper's network
    plans       steps of several plans, in turn
    probes      how long a rank and its messages take
"""
