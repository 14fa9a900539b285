"""Loops over contiguous arrays, compiled by Numba; see :mod:`.compiling`.

::

    activations          activations of arrays
    pointwise            activations of one number
    exponential          exp, tanh and sigmoid of one number, in vector instructions
    softmax              softmax of rows, or of slices
    normalization        sums along rows and columns, and normalized numbers
    normalized           batch normalization of one number
    pooling              pooling
    convolution          copies around the products of convolutions
    grouped_convolution  convolutions in groups of few channels
    columns              ReLU of some columns of a matrix
    embedding            embeddings
    recurrent            steps of n-step LSTM, GRU and RNN, and Chainer's LSTM
    recurrent_steps      steps of L.LSTM and L.GRU
    lstm_rows            one row of an LSTM, for the loops of both
    block_rows           tiles of weights that are not skipped
    tile_panels          products of many rows with such tiles
    tile_sums            products of few rows with them
    vector_code          vectors of float32 that stay in registers
    amx, amx_tiles       products in bfloat16 by AMX, and its tiles
    addresses            addresses of arrays
    half_precision       float16, as bits, to float32 and back
    half_sums            products of float16 matrices whose sums are float16
    bfloat16             float32 rounded to bfloat16
    whole_numbers        float32 to whole numbers of 8 bits, and back
    wire                 gradients in fewer bits, written and read
    oyama2017            Algorithm 1 of Oyama et al.
    mersenne_twister     random numbers of numpy.random, many at a time
"""
