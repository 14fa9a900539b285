"""Repairs for CuPy 13 and 14, in Chainer and ChainerMN.

CuPy 14 dropped cuDNN, so Chainer runs its own kernels there. CuPy 14 no longer includes
the float16 type in every kernel, and follows NumPy 2 in refusing ``copy=False`` where a
copy is needed. CuPy 13 still binds cuDNN 8, if that is installed.

No GPU was at hand when these were written: they follow CuPy's sources and compile
with NVRTC. ``pytest -m gpu`` runs them.
"""

from chainer_compat._shim import Edit, Shim, since

_BATCHED = "(r'''\n#include <cupy/carray.cuh>\n#define NCCL_FLOAT16  6\n"

SHIMS = (
    Shim(
        name="cupy-missing",
        module="chainer.backends.cuda",
        why="the error of a GPU without CuPy refers to a page that is gone",
        edits=(
            Edit(
                "        msg = ('CUDA environment is not correctly set up\\n'\n"
                "               '(see https://github.com/chainer/chainer#installation)"
                ".')\n"
                "        msg += str(_resolution_error)\n",
                "        msg = ('CUDA environment is not correctly set up: a GPU is"
                " asked for, and CuPy cannot be imported (%s).\\n'\n"
                "               'Install the CuPy that fits the driver, with the CUDA"
                ' libraries, such as\\n    pip install "cupy-cuda12x[ctk]"\\n'
                "where 12 is the version of CUDA that nvidia-smi shows. To go on"
                ' without a GPU, use the device "@numpy", or -1 in place of its'
                " number.')\n"
                "        msg %= _resolution_error\n",
            ),
        ),
    ),
    Shim(
        name="tensor-core-without-cudnn",
        module="chainer.backends.cuda",
        why="should_use_cudnn_tensor_core uses the name cudnn, which is not defined "
        "without cuDNN",
        why_not_needed=since("cupy", "13.0"),
        edits=(
            Edit(
                "use_tensor_core = cudnn.is_tensor_core_available(dtype)",
                "use_tensor_core = (cudnn_enabled and"
                " cudnn.is_tensor_core_available(dtype))",
            ),
        ),
    ),
    Shim(
        name="cudnn-reminder",
        module="chainer.backends.cuda",
        why="asks to install cuDNN, which no CuPy since 14 can use",
        why_not_needed=since("cupy", "14.0"),
        edits=(
            Edit(
                "    if (not cudnn_enabled and\n            not _cudnn_disabled",
                "    if (not cudnn_enabled and _cupy_major < 14 and\n"
                "            not _cudnn_disabled",
            ),
        ),
    ),
    Shim(
        name="dropout-without-cudnn",
        module="chainer.functions.noise.dropout",
        why="cuDNN draws masks from a stream of its own, which nobody can seed, so a "
        "forward that is run again gets other ones; with use_cudnn='always' it may",
        why_not_needed=since("cupy", "13.0"),
        edits=(
            Edit(
                "chainer.should_use_cudnn('>=auto', 5000)",
                "chainer.should_use_cudnn('==always', 5000)",
                count=2,
            ),
        ),
    ),
    Shim(
        name="nccl-warning",
        module="chainer.training.updaters.multiprocess_parallel_updater",
        why="looking for NCCL makes CuPy warn at each import of Chainer that it is "
        "not installed; ChainerMN says so when NCCL is needed",
        why_not_needed=since("cupy", "13.0"),
        edits=(
            Edit(
                "try:\n    from cupy.cuda import nccl\n    _available = True\n"
                "except Exception:\n    _available = False\n",
                "try:\n    from chainer_compat import _nccl; nccl = _nccl.find()\n"
                "    _available = True\nexcept Exception:\n    _available = False\n",
            ),
        ),
    ),
    Shim(
        name="float16-in-parallel-updater",
        module="chainer.training.updaters.multiprocess_parallel_updater",
        why="the kernels that gather gradients use float16 without including it",
        why_not_needed=since("cupy", "14.0"),
        edits=(
            Edit(
                "        loop_prep='''\n",
                "        preamble='#include <cupy/float16.cuh>', loop_prep='''\n",
                count=2,
            ),
        ),
    ),
    Shim(
        name="float16-in-chainermn",
        module="chainermn.communicators._memory_utility",
        why="the kernels that pack gradients use half without including it",
        why_not_needed=since("cupy", "14.0"),
        edits=(
            Edit(
                _BATCHED,
                _BATCHED.replace("(r'''\n", "(r'''").replace(
                    "carray.cuh>\n", "carray.cuh>\n#include <cuda_fp16.h>\n"
                ),
                count=2,
            ),
        ),
    ),
    Shim(
        name="array-copy",
        module="chainermn.communicators._memory_utility",
        why="array(copy=False, dtype=...) refuses to convert between dtypes, as "
        "unpacking gradients of mixed dtypes must",
        why_not_needed=since("cupy", "14.0"),
        edits=(
            Edit(
                "xp.array(v, copy=False, dtype=transfer_dtype)",
                "xp.asarray(v, dtype=transfer_dtype)",
            ),
        ),
    ),
)
