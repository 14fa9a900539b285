"""Training steps of Chainer beside PyTorch's, of the same models with the same weights.

::

    models          the models in Chainer, their inputs and optimizers
    torch_models    the same in PyTorch, with the weights of the former
    trainers        forward, backward and update of either
    torch_pipelines one rank of a pipeline of PyTorch
    workers         a trainer in a process of its own, which takes turns with others
    __main__        the table

Only what runs in the processes of PyTorch imports it.
"""
