"""Figures 6 to 14 of Takisawa et al. (2022), measured again on emulated hosts.

points.py       what is measured: the figures' points, scaled to the machine
models.py       the models, where they are cut, and what they send
profiles.py     the profiles of the models: where they are, and one of several
samples.py      what was measured so far, one line for each step
work.py         what the hosts do
simulations.py  steps, simulated by other steps and by their own
rows.py         a row for each point: measured, by equation (3), simulated
report.py       the tables and the CSV file
verdicts.py     what to think of them: chance, older samples, targets met or missed
plots.py        the figures
cli.py          the command

python -m benchmarks.paper_tables --quick
"""
