"""Parts that several benchmarks use.

::

    results         a result as a file of text, with command and machine
    json_lines      measurements in a file, a line of JSON for each
    quick           the option --quick of benchmarks that take long
    extras          packages that only some benchmarks need
    findings        a table of a paper's findings beside measurements
    hosts           options and jobs of benchmarks that run on emulated hosts
    on_host         what runs on such a host
    two_ranks       the start of a benchmark of two ranks on two cores
    perceptron      the paper's network
    perceptron_run  a run of it on the ranks of a benchmark
    products        its matrix products alone
    single_layers   single layers to measure, and the CPU seconds of a call
    rounded         a layer that rounds as a narrow message does
    plans           steps of several plans, in turn
    probes          how long a rank and its messages take
"""
