"""Compression by trying: the command ``divisible compress``.

::

    session        the dense run, the trials, the rounds, in this order
    goals          what a round may leave, and its plan
    taken_trainer  runs a script whose trainer a session takes
    trained_model  the model of a trainer: its evaluation, its file
    journal        the state of a session on disk
    report         the table and the picture at the end
"""
