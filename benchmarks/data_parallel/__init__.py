"""Exchange of gradients between replicas: how fast it is, and what it costs.

::

    exchange      the mean of an array over hosts, by wire dtype: time and bytes
    turns         what the hosts do for it
    coding        encoding and decoding alone
"""
