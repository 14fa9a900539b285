"""Data that are made up in place of downloads.

Every function but `data_sets.write` returns one that writes files into a folder.
Classes of examples differ, so that a loss can fall.

::

    data_sets  Chainer's own data sets, in the folder where it keeps them
    images     pictures, and pictures of classes of cells
    texts      lines of words, of numbers, and of settings
    arrays     arrays, clouds of points
"""
