"""Figures 1 and 8 to 13 of Oyama et al. (2017), in small: accuracies in 8 bits.

::

    cli           the command
    networks      CaffeNet and GoogLeNet, scaled down to digits
    experiments   the trainings, their learning-rate policies, and the ways to exchange
    curves        their accuracies, computed in several processes and kept in a file
    look          weights and gradients of CaffeNet in the middle of its training
    findings      the paper's findings beside those here
    plots         the figures
    page          the page in docs/paper_exchange
"""
