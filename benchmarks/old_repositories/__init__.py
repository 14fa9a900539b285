"""Public repositories of Chainer's years, run as they are on today's Python.

    python -m benchmarks.old_repositories DIR

DIR has source trees that the reader fetched, each in a folder OWNER+NAME, at the commit
that the table of programs names. Nothing of them is part of this project. The programs
are run in the folder that the table names, which is on the path of modules as well.

::

    program       a program: where it is, what it needs, its data
    programs      the table, by kind
    made_up       data that are generated in place of downloads
    environments  an environment for each set of packages, beside this project
    trial         one run of a program
    processes     processes with a deadline, in copies of trees
    recording     within that run: losses and times of steps
    comparing     losses with kernels and without, and the verdict
    rows          rows of the result, written and read
    pipelines     models as pipelines on two ranks
    models        such a model, described
    model_table   all of them, by repository
    on_two_ranks  such a model undivided and as a pipeline, losses compared
    arguments     options that these commands have in common
    ports         whole scripts rewritten by a command
    port_table    these scripts
    seeded        such a script with the same random numbers on all ranks
    drivers       programs of this project that call models of others
"""
