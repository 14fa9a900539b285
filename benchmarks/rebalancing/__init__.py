"""Layers, and parts of minibatches, that leave hosts which become slow.

python -m benchmarks.rebalancing               one pipeline: layers move
python -m benchmarks.rebalancing --replicas    two: planned, run, one host slowed
"""
