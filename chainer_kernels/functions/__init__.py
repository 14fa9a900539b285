"""Kernels: the arithmetic of Chainer's methods on NumPy arrays, faster.

Each function here has the arguments of the method that it stands for, and leaves behind
on the node what Chainer's own would: inputs and outputs to retain, and attributes that
its ``backward`` reads. For inputs that it does not cover it returns ``NotImplemented``
before it has changed anything.

::

    products             linear functions and products of matrices
    convolution          convolutions and deconvolutions
    pooling              poolings and their inverses
    activations          activations, element by element
    softmax              softmax, its logarithm, and its cross entropy
    dropout              dropout
    embedding            the gradient of embeddings
    batch_normalization  batch normalization
    group_normalization  group normalization
    layer_normalization  layer normalization
    channels             statistics of channels, for normalizations
    recurrent            n-step LSTM, GRU and RNN
    recurrent_cells      one step of these, and Chainer's function of such a step
    recurrent_links      kernels of L.LSTM, L.GRU and their stateless forms
    recurrent_steps      a step of these links as one function
    block_products       linear layers and convolutions that skip blocks of zeros
    whole_layers         linear layers and convolutions of 8-bit numbers
    optimizers           updates of parameters
    weight_gradients     contributions to gradients of parameters, not formed as arrays
    sums                 sums over the leading axes, as in gradients of biases
    halves               what one half of a backward may keep for the other

    gpu_choice               whether and how cuDNN computes on arrays of CuPy
    gpu_convolution          convolutions by cuDNN
    gpu_batch_normalization  batch normalization by cuDNN
"""
