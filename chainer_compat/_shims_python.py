"""Repairs of uses of Python, its packaging tools, and the Web."""

from chainer_compat._shim import Edit, Shim, since

SHIMS = (
    Shim(
        name="environment-check",
        module="chainer._environment_check",
        why="imports numpy.distutils and pkg_resources, which are gone, to look for "
        "versions of NumPy, CuPy and iDeep from 2020",
        edits=(
            Edit("import numpy.distutils.system_info\n", "\n"),
            Edit("import pkg_resources\n", "\n"),
            Edit("    _check_osx_numpy_backend()\n", "\n"),
            Edit("    _check_optional_dependencies()\n", "\n"),
        ),
    ),
    Shim(
        name="testing-requirements",
        module="chainer.testing.helper",
        why="imports pkg_resources, which is gone, for with_requires",
        edits=(
            Edit(
                "import pkg_resources\n",
                "from chainer_compat import _requirements as pkg_resources\n",
            ),
        ),
    ),
    Shim(
        name="doctest-requirements",
        module="chainer.testing.doctest_helper",
        why="imports pkg_resources, which is gone, for skipif_requires_satisfied",
        edits=(
            Edit(
                "import pkg_resources\n",
                "from chainer_compat import _requirements as pkg_resources\n",
            ),
        ),
    ),
    Shim(
        name="experimental-warnings",
        module="chainer.utils.experimental",
        why="every use of ChainerMN's functions, and every export_testcase of "
        "onnx_chainer, prints that its interface can change, which it no longer can",
        edits=(
            Edit(
                "    if not chainer.disable_experimental_feature_warning:\n",
                "    if not (chainer.disable_experimental_feature_warning"
                " or api_name.startswith(('chainermn.', 'return_named_inout',"
                " 'external_', 'as_funcnode'))):\n",
            ),
        ),
    ),
    Shim(
        name="mnist",
        module="chainer.datasets.mnist",
        why="the server that get_mnist downloads from refuses to send the files; "
        "another has the same ones",
        edits=(
            Edit(
                "'http://yann.lecun.com/exdb/mnist/",
                "'https://ossci-datasets.s3.amazonaws.com/mnist/",
                count=4,
            ),
        ),
    ),
    Shim(
        name="thread-daemon",
        module="chainer.iterators.multiprocess_iterator",
        why="Thread.setDaemon is deprecated; MultiprocessIterator calls it",
        edits=(Edit("thread.setDaemon(True)", "thread.daemon = True"),),
    ),
    Shim(
        name="dead-workers",
        module="chainer.iterators.multiprocess_iterator",
        why="MultiprocessIterator waits for ever for a worker process that was killed "
        "or cannot start, as under MPI with 'forkserver', the default of Python 3.14",
        edits=(
            Edit(
                "import multiprocessing\n",
                "import multiprocessing; from chainer_compat import _workers\n",
            ),
            Edit(
                "        thread = threading.Thread(target=self._run,",
                "        _workers.watch(self._pool);"
                " thread = threading.Thread(target=self._run,",
            ),
            Edit(
                "                    if self._comm.is_terminated:\n",
                "                    if self._comm.is_terminated"
                " or _workers.have_failed(self):\n",
            ),
            Edit(
                "            self._pool.join()\n",
                "            _workers.join(self._pool)\n",
            ),
        ),
    ),
    Shim(
        name="hdf5-strings",
        module="chainer.serializers.hdf5",
        why="h5py 3 reads strings as bytes, so load_hdf5 returned \"b'text'\"",
        why_not_needed=since("h5py", "3.0"),
        edits=(
            Edit(
                "value = type(value)(numpy.asarray(dataset))",
                "value = (dataset.asstr()[()] if isinstance(value, str)"
                " else type(value)(numpy.asarray(dataset)))",
            ),
        ),
    ),
)
