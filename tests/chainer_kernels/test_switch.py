"""Whether kernels are in force, by thread and by what Chainer is configured to use."""

import threading

import chainer

from chainer_kernels import switch


def test_disabled_in_this_thread_alone():
    elsewhere = []
    with switch.disabled(), switch.disabled():
        thread = threading.Thread(target=lambda: elsewhere.append(switch.is_on()))
        thread.start()
        thread.join(10)
        assert not switch.is_on() and not switch.is_ours()
    assert elsewhere == [True]
    assert switch.is_on() and switch.is_ours()


def test_ideep_does_not_switch_off_but_has_its_own_arithmetic():
    for choice in ("auto", "always"):
        with chainer.using_config("use_ideep", choice):
            assert switch.is_on() and not switch.is_ours()
