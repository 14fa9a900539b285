"""Figures 5 to 14 of Takisawa et al. (2022), measured again on emulated hosts.

::

    points.py    the figures' points, scaled to the machine
    models.py    the models, and where they are cut
    profiles.py  the profiles of the models' layers, by which our cuts are chosen
    work.py      the work of the hosts
    samples.py   the measurements so far, one line for each step
    rows.py      a row for each point: measured, and by equation (3)
    page.py      the page with its table, and the CSV file of all points
    plots.py     the figures
    cli.py       the command

    figure_5.py        Fig. 5, on real ranks: a command of its own
    recorded_loop.py   the paper's loop, with a record of what every rank does
    first_backward.py  how long the first backward takes, beside later ones

    data/        profiles, samples, and the points as CSV

    python -m benchmarks.paper_tables --quick
"""
