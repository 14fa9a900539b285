"""Figures 5 to 14 of Takisawa et al. (2022), measured again.

Figures 6 to 14 are measured on emulated hosts. Two other commands run on real ranks.

::

    arithmetic.py  what computes: kernels with a provider, or Chainer's own arithmetic
    points.py      the figures' points, scaled to the machine
    models.py      the models, and where they are cut
    profiles.py    the profiles of the models' layers, by which our cuts are chosen
    durations.py   how often steps are timed, and about how long that takes
    measuring.py   brings hosts up for one group of points after the other
    work.py        the work of the hosts
    steps.py       the steps of a rank: undivided, as in the paper, or pipelined
    timer.py       times a step that all ranks take together
    samples.py     the measurements so far, one line for each step
    rows.py        a row for each point: measured, and by equation (3)
    campaigns.py   samples that may be compared: of one arithmetic, and of one origin
    page.py        the page, and the CSV file of all points
    tables.py      the best speed-ups
    findings.py    the paper's findings beside those of the points
    claim.py       a claim, and the points in which it is checked;
                   perceptron_findings.py, input_size_findings.py, model_findings.py
    plots.py       the figures
    cli.py         the command

    on_ranks.py        the command that measures these ways on real hosts
    figure_5.py        the command of Fig. 5
    recorded_loop.py   the paper's loop, with a record of what every rank does
    first_backward.py  how long the first backward takes, beside later ones

    data/        the repository's samples, profiles, and its points as CSV

    python -m benchmarks.paper_tables --quick
"""
