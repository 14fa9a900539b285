"""Scripts for Chainer 1 compute what they did, with one warning of each kind."""

from tests.chainer_compat.test_scripts import done, run

SCRIPT = """
    import numpy as np
    import chainer
    import chainer.functions as F
    import chainer.links as L

    x = np.random.RandomState(0).rand(6, 4).astype("f")
    np.random.seed(0)
    model = chainer.FunctionSet(
        l1=F.Linear(4, 50, wscale=4, bias=1),
        l2=L.Linear(50, 3, initialW=np.ones((3, 50), "f"), wscale=4),
    )
    model.bn = L.BatchNormalization(50, use_cudnn=False)
    assert {path for path, _ in model.namedparams()} >= {"/bn/beta", "/l1/W"}
    assert abs(model.l1.W.array.std() - 1) < 0.1 and (model.l1.b.array == 1).all()
    assert (model.l2.W.array == 2).all()

    def forward(x, train):
        x = chainer.Variable(x, volatile=not train)
        h = model.bn(model.l1(x), test=not train)
        h = F.dropout(F.relu(h, use_cudnn=False), 0.5, train)
        return model.l2(h)

    # Test mode: nothing is dropped, the running averages are used, there is no graph.
    before = model.bn.avg_mean.copy()
    y, z = forward(x, False), forward(x, False)
    assert (y.array == z.array).all() and (model.bn.avg_mean == before).all()
    assert y.creator is None and y.volatile == "on"
    assert (F.dropout(x, ratio=0.5, train=False).array == x).all()
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        h = F.relu(model.bn(model.l1(x)))
        assert np.allclose(model.l2(h).array, y.array)

    optimizer = chainer.optimizers.SGD(0.1)
    optimizer.setup(model.collect_parameters())
    losses = []
    t = np.arange(6, dtype=np.int32) % 3
    for _ in range(15):
        optimizer.zero_grads()
        y = forward(x, True)
        assert y.volatile == "off" and y.creator is not None
        loss = F.SoftmaxCrossEntropy()(y, t)
        loss.backward()
        optimizer.weight_decay(0.0)
        optimizer.clip_grads(1.0)
        norm = sum((g ** 2).sum() for g in model.gradients) ** 0.5
        assert norm < 1.0001
        optimizer.update()
        losses.append(float(loss.array))
    assert losses[-1] < losses[0], losses
    assert (model.bn.avg_mean != before).any()

    # A link that no loss has used has gradients of zeros.
    idle = chainer.FunctionSet(used=L.Linear(4, 1), idle=L.Linear(4, 1))
    optimizer = chainer.optimizers.SGD(0.1)
    optimizer.setup(idle)
    optimizer.zero_grads()
    F.sum(idle.used(x)).backward()
    optimizer.weight_decay(0.5)
    optimizer.clip_grads(1.0)
    assert (idle.idle.W.grad * idle.idle.W.array > 0).all()

    images = np.random.rand(2, 3, 6, 6).astype("f")
    pooled = F.MaxPooling2D(2, stride=2, use_cudnn=False)(images)
    assert (pooled.array == F.max_pooling_2d(images, 2).array).all()
    assert F.Concat(axis=0)(x, x).shape == (12, 4)
    conv = F.Convolution2D(3, 2, 3, pad=1, wscale=0.25, deterministic=True)
    assert conv(images).shape == (2, 2, 6, 6)
    scaled = L.Linear(4, 50, 100, 3), L.Convolution2D(3, 50, 3, 1, 0, 27.0)
    assert abs(scaled[0].W.array.std() - 5) < 1 and (scaled[0].b.array == 3).all()
    assert abs(scaled[1].W.array.std() - 1) < 0.1 and scaled[1].b is not None
    assert L.Linear(4, 50, True).b is None
    for given, scale in (None, 3), (2.0, 3), (chainer.initializers.LeCunNormal(), 3):
        drawn = np.zeros((300, 40), "f")
        chainer.initializers._get_initializer(given, scale=scale)(drawn)
        wanted = given * scale if given == 2.0 else scale * 40 ** -0.5
        assert abs((drawn ** 2).mean() ** 0.5 / wanted - 1) < 0.05
    assert chainer.Variable(x, "on").volatile == "on"
    import inspect
    assert inspect.getargspec(model.bn).args == ["self", "x", "test", "finetune"]
    assert inspect.getargspec(model.l1).args == ["self", "x", "n_batch_axes"]
    assert inspect.getargspec(F.relu).args == ["x"]
    assert inspect.getargspec(F.dropout) == (
        ["x", "ratio", "train"], None, "kwargs", (0.5, True)
    )
    lstm = L.NStepLSTM(1, 4, 3, 0.5, use_cudnn=False)
    (h, _, _), (same, _, _) = [lstm(None, None, [x], train=False) for _ in range(2)]
    assert (h.array == same.array).all()
    other = chainer.FunctionSet(l1=L.Linear(4, 50), l2=L.Linear(50, 3))
    other.bn = L.BatchNormalization(50)
    other.copy_parameters_from(model.parameters)
    assert (other.l1.W.array == model.l1.W.array).all()
    try:
        F.VariationalLoss
    except AttributeError as error:
        assert "gaussian_kl_divergence" in str(error)
    print("done")
"""


def test_a_script_for_chainer_1_runs_as_it_is(tmp_path):
    command = "-m", "chainer_compat", "run", "--compat", "names,chainer1"
    result = done(run(tmp_path, SCRIPT, *command))
    assert result.stdout == "done\n"
    told = [line for line in result.stderr.splitlines() if "RuntimeWarning" in line]
    assert all("script.py:" in line for line in told), told
    kinds = "train= test= volatile= wscale= bias= use_cudnn= FunctionSet zero_grads"
    for kind in kinds.split():
        assert sum(kind in line for line in told) == 1, (kind, told)


TRAINING = """
    import sys
    import numpy as np
    import chainer
    from chainer import training
    from chainer.training import extensions

    class Net(chainer.Chain):
        def __init__(self):
            super(Net, self).__init__(l=chainer.links.Linear(4, 2))

        def __call__(self, x, t):
            x.data = x.data.reshape(-1, 4)
            loss = chainer.functions.softmax_cross_entropy(self.l(x), t)
            chainer.report({"loss": loss}, self)
            return loss

    data = chainer.datasets.TupleDataset(
        np.ones((6, 2, 2), "f"), np.arange(6, dtype="i") % 2
    )
    model = Net()
    optimizer = chainer.optimizers.SGD()
    optimizer.setup(model)
    iterator = chainer.iterators.SerialIterator(data, 3)
    updater = training.StandardUpdater(iterator, optimizer)
    updater.update()
    test = chainer.iterators.SerialIterator(data, 3, repeat=False, shuffle=False)
    result = extensions.Evaluator(test, model)()
    assert set(result) == {"main/loss"}
    taken = extensions.snapshot(trigger=(3, "iteration"))
    assert taken.trigger == (3, "iteration")
    of_model = extensions.snapshot_object(model, "x", trigger=(5, "epoch"))
    assert of_model.trigger == (5, "epoch")

    # As training on several GPUs does it.
    before = model.l.W.array.copy()
    updater = training.ParallelUpdater(iterator, optimizer, devices={"main": -1})
    updater.update()
    assert (model.l.W.array != before).any()

    class Early(training.Extension):
        invoke_before_training = True

        def __call__(self, trainer):
            seen.append(trainer.updater.iteration)

    seen = []
    updater = training.StandardUpdater(iterator, optimizer)
    trainer = training.Trainer(updater, (2, "iteration"), out=sys.argv[1])
    trainer.extend(Early(), trigger=(2, "iteration"))
    trainer.extend(lambda trainer: seen.append("once"), "once", (9, "epoch"),
                   invoke_before_training=True)
    trainer.run()
    assert seen == [0, "once", 2], seen
    print("done")
"""


FUNCTIONS = """
    import numpy as np
    import chainer
    from chainer.functions.activation.relu import ReLU
    from chainer.functions.pooling import pooling_2d

    class SumPooling(pooling_2d.Pooling2D):
        def check_type_forward(self, in_types):
            if in_types.size().eval() == 1:
                chainer.utils.type_check.expect(in_types[0].ndim == 4)

        def forward_cpu(self, x):
            assert (self.kh, self.kw) == (2, 2)
            n, c, h, w = x[0].shape
            return x[0].reshape(n, c, h // 2, 2, w // 2, 2).sum(axis=(3, 5)),

        def backward_cpu(self, x, gy):
            assert x[0].shape == (1, 1, 4, 4)
            return gy[0].repeat(2, axis=2).repeat(2, axis=3),

    x = chainer.Variable(np.arange(-8, 8, dtype="f").reshape(1, 1, 4, 4))
    y = SumPooling(2)(ReLU()(x))
    assert (y.array == chainer.functions.average_pooling_2d(
        chainer.functions.relu(x), 2).array * 4).all()
    chainer.functions.sum(y * y).backward()
    assert (x.grad[0, 0, :2] == 0).all()
    assert x.grad[0, 0, 3, 3] == 2 * y.array[0, 0, 1, 1]
    try:
        SumPooling(2)(x[0])
    except chainer.utils.type_check.InvalidType:
        print("done")
"""


POSITIONAL = """
    import numpy as np
    import chainer
    import chainer.functions as F
    import chainer.links as L
    from chainer.functions.connection import convolution_2d, deconvolution_2d

    random = np.random.RandomState(0)
    x, W = random.rand(2, 3, 6, 6).astype("f"), random.rand(4, 3, 3, 3).astype("f")
    y, t = random.rand(5, 4).astype("f"), np.array([0, 1, -1, -1, 3], "i")

    def same(found, expected):
        assert found.shape == expected.shape, (found.shape, expected.shape)
        assert (found.array == expected.array).all()

    # Chainer of today has another argument in the place of use_cudnn.
    for use_cudnn in True, False, np.bool_(True):
        for of in F, convolution_2d:
            conv = of.convolution_2d
            same(conv(x, W, None, 2, 0, use_cudnn), F.convolution_2d(x, W, stride=2))
            same(conv(x, W, None, 2, 0, use_cudnn, True, deterministic=True),
                 F.convolution_2d(x, W, stride=2, cover_all=True))
        same(F.convolution_nd(x, W, None, 2, 0, use_cudnn),
             F.convolution_nd(x, W, stride=2))
        for of in F, deconvolution_2d:
            same(of.deconvolution_2d(x, W.transpose(1, 0, 2, 3), None, 1, 0, None,
                                     use_cudnn, True),
                 F.deconvolution_2d(x, W.transpose(1, 0, 2, 3)))
        same(F.dilated_convolution_2d(x, W, None, 1, 0, 2, use_cudnn),
             F.dilated_convolution_2d(x, W, dilate=2))
        same(F.softmax(y, use_cudnn), F.softmax(y))
        same(F.log_softmax(y, use_cudnn), F.log_softmax(y))
        same(F.relu(y, use_cudnn), F.relu(y))
        same(F.max_pooling_2d(x, 2, 2, 0, True, use_cudnn), F.max_pooling_2d(x, 2))
        same(F.average_pooling_nd(x, 3, 2, 1, use_cudnn),
             F.average_pooling_nd(x, 3, 2, 1))
        same(F.softmax_cross_entropy(y, t, use_cudnn), F.softmax_cross_entropy(y, t))
        same(F.softmax_cross_entropy(y, t, use_cudnn, False),
             F.softmax_cross_entropy(y, t, normalize=False))
        same(F.SoftmaxCrossEntropy(use_cudnn)(y, t), F.softmax_cross_entropy(y, t))
    # What is not a bool is an argument of today.
    same(F.softmax(y, 0), F.softmax(y, axis=0))
    assert L.Convolution2D(3, 4, 3, 2)(x).shape == (2, 4, 2, 2)
    assert L.ConvolutionND(2, 3, 4, 3, 2, cover_all=True)(x).shape == (2, 4, 3, 3)
    y = F.convolution_1d(x[:, :, 0], W[:, :, 0], None, 2, 0, True)
    assert y.shape == (2, 4, 3)
    print("done")
"""


def test_arguments_of_chainer_1_may_be_given_by_position(tmp_path):
    command = "-m", "chainer_compat", "run", "--compat", "names,chainer1"
    result = done(run(tmp_path, POSITIONAL, *command))
    assert result.stdout == "done\n"
    assert result.stderr.count("use_cudnn=") == 1


LATE = """
    import numpy as np
    import chainer
    import chainer.functions as F

    class Late(chainer.Link):
        def __init__(self):
            super(Late, self).__init__()
            self.add_uninitialized_param("W")
            self.add_param("b", (2,), initializer=1)

        def __call__(self, x):
            if self.has_uninitialized_params:
                self.add_param("W", (2, x.shape[1]), initializer=0.5)
            return F.linear(x, self.W, self.b)

    link = Late()
    optimizer = chainer.optimizers.SGD(1)
    optimizer.setup(link)
    assert link.has_uninitialized_params
    for _ in range(2):
        loss = F.sum(link(np.ones((1, 3), "f")))
        link.cleargrads()
        loss.backward()
        optimizer.update()
    assert (link.W.array == -1.5).all() and (link.b.array == -1).all()
    print("done")
"""


def test_a_parameter_may_get_its_size_late(tmp_path):
    command = "-m", "chainer_compat", "run", "--compat", "chainer1"
    result = done(run(tmp_path, LATE, *command))
    assert result.stdout == "done\n"
    assert result.stderr.count("self.W = chainer.Parameter()") == 1


def test_a_function_may_have_one_of_chainers_as_its_base(tmp_path):
    command = "-m", "chainer_compat", "run", "--compat", "chainer1"
    result = done(run(tmp_path, FUNCTIONS, *command))
    assert result.stdout == "done\n"
    assert result.stderr.count("runs as a chainer.Function") == 1
    assert result.stderr.count("ReLU(...).apply((x,))[0]") == 1


def test_updaters_and_evaluators_pass_variables(tmp_path):
    command = "-m", "chainer_compat", "run", "--compat", "chainer1"
    given = [str(tmp_path / "out")]
    result = done(run(tmp_path, TRAINING, *command, arguments=given))
    assert result.stdout == "done\n" and "as_variable(x)" in result.stderr
    assert result.stderr.count("trainer.extend(extension") == 1
    plain = run(tmp_path, TRAINING, "-m", "chainer_compat", "run", arguments=given)
    assert plain.returncode == 1 and "memoryview" in plain.stderr


def test_after_chainer_it_is_too_late(tmp_path):
    text = """
        import chainer
        from chainer_compat import _modes
        try:
            _modes.enable("chainer1")
        except RuntimeError as error:
            print(error)
    """
    result = done(run(tmp_path, text))
    assert "CHAINER_COMPAT=chainer1" in result.stdout
