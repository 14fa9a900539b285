"""Repairs of uses that NumPy and SciPy removed or changed."""

from chainer_compat._shim import Edit, Shim, since

SHIMS = (
    Shim(
        name="numpy-sctypes",
        module="chainer.functions.array.as_strided",
        why="numpy.sctypes is gone",
        why_not_needed=since("numpy", "2.0"),
        edits=(
            Edit(
                "for t in np.sctypes['int']}",
                "for t in (np.int8, np.int16, np.int32, np.int64)}",
            ),
            Edit("if gy.dtype not in np.sctypes['float']:", "if gy.dtype.kind != 'f':"),
        ),
    ),
    Shim(
        name="numpy-float",
        module="chainer.functions.array.resize_images",
        why="numpy.float is gone",
        why_not_needed=since("numpy", "1.20"),
        edits=(Edit("dtype=numpy.float)", "dtype=float)", count=6),),
    ),
    Shim(
        name="meshgrid-tuple",
        module="chainer.distributions.categorical",
        why="numpy.meshgrid returns a tuple, to which Categorical.log_prob adds a list",
        why_not_needed=since("numpy", "2.0"),
        edits=(Edit("[mg + [", "[list(mg) + [", count=2),),
    ),
    Shim(
        name="array-device",
        module="chainer.variable",
        why="NumPy arrays have a device 'cpu', which Variable.debug_print shows "
        "instead of 'CPU'",
        why_not_needed=since("numpy", "2.0"),
        edits=(
            Edit(
                "device = getattr(array, 'device', 'CPU')",
                "device = 'CPU' if xp is numpy else getattr(array, 'device', 'CPU')",
            ),
        ),
    ),
    Shim(
        name="pad-sequence",
        module="chainer.functions.array.pad_sequence",
        why="a padding of -1 no longer wraps around in unsigned arrays (NEP 50)",
        why_not_needed=since("numpy", "1.24"),
        edits=(
            Edit(
                "y[i, l:] = self.padding",
                "y[i, l:] = numpy.asarray(self.padding).astype(y.dtype)",
            ),
            Edit(
                "(ptrs, lengths, self.padding, base, length, y)",
                "(ptrs, lengths, numpy.asarray(self.padding).astype(y.dtype)[()],"
                " base, length, y)",
            ),
        ),
    ),
    Shim(
        name="sparse-float16",
        module="chainer.functions.math.sparse_matmul",
        why="scipy.sparse refuses float16; it is multiplied in float32 and rounded",
        why_not_needed=since("scipy", "1.11"),
        edits=(
            Edit(
                "    _m, _k = A_shape\n    _n = B.shape[-1]\n    if B.ndim == 2:\n"
                "        sp_A = sparse",
                "    _m, _k = A_shape; A_data = _sparse_data(A_data)\n"
                "    _n = B.shape[-1]\n    if B.ndim == 2:\n        sp_A = sparse",
            ),
            Edit(
                "    _scipy_available = True\n",
                "    _scipy_available = True; _sparse_data = lambda x: ("
                "x.astype(numpy.float32) if x.dtype == numpy.float16 else x)\n",
            ),
        ),
    ),
    Shim(
        name="numpy-fix",
        module="chainer.functions.math.fix",
        why="numpy.fix is deprecated; F.fix and the gradient of F.fmod call it",
        why_not_needed=since("numpy", "2.1"),
        edits=(Edit("(xp.fix(x), x.dtype)", "(xp.trunc(x), x.dtype)"),),
    ),
    Shim(
        name="maximum-out",
        module="chainer.dataset.convert",
        why="numpy.maximum takes its output by keyword only; concat_examples with "
        "padding passes it by position",
        why_not_needed=since("numpy", "2.0"),
        edits=(
            Edit(
                "numpy.maximum(shape, array.shape, shape)",
                "numpy.maximum(shape, array.shape, out=shape)",
            ),
        ),
    ),
    Shim(
        name="assign-shape",
        module="chainer.links.activation.maxout",
        why="an array's shape is no longer to be assigned; links.Maxout does with "
        "initializers that are functions",
        why_not_needed=since("numpy", "2.0"),
        edits=(
            Edit(
                "array.shape = (out_size, pool_size, in_size)",
                "array = array.reshape(out_size, pool_size, in_size)",
            ),
            Edit("array.shape = (linear_out_size, in_size)", "pass"),
            Edit(
                "array.shape = (out_size, pool_size)\n",
                "array = array.reshape(out_size, pool_size)\n",
            ),
            Edit("array.shape = linear_out_size,", "pass"),
        ),
    ),
    Shim(
        name="npz-pickle",
        module="chainer.serializers.npz",
        why="load_npz runs whatever code the pickles in a file name; they are read by "
        "chainer_compat.npz, which knows None alone",
        edits=(
            Edit(
                "import numpy\n",
                "import numpy; from chainer_compat import npz as _npz\n",
            ),
            Edit("dataset = self.npz[key]", "dataset = _npz.read(self.npz, key)"),
            Edit(
                "with numpy.load(file, **_allow_pickle_kwargs) as f:",
                "with _npz.NpzArrays(file) as f:",
            ),
        ),
    ),
)
