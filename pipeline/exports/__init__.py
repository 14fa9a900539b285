"""Trained models for other libraries, each compared with the model before it is kept.

::

    formats        what there is, by name: how to write it, and what it needs
    onnx_graphs    graphs of ONNX, for any number of samples
    torch_modules  the nn.Sequential that computes what a list of layers does
"""
