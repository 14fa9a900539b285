"""Exports trained models for other libraries, compared with the model.

::

    formats        the formats by name: how to write them, and what they need
    onnx_graphs    graphs of ONNX, for any number of samples
    torch_modules  the nn.Sequential that computes what a list of layers does
"""
