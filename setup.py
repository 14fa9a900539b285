"""Puts the start-up files beside the installed packages.

setup.cfg holds everything else. setuptools has no option for a file at the top
of site-packages. Its ``install_headers`` command is the one step that wheels and
editable installs both run on files outside packages. This command is borrowed:
the files go to the wheel's ``purelib`` folder instead of its ``headers`` folder.
"""

import os

from setuptools import Command, setup

STARTUP_FILES = [
    "chainer_compat/chainer_compat.pth",
    "chainer_compat/chainer_compat.start",
    "chainer_kernels/chainer_kernels.pth",
    "chainer_kernels/chainer_kernels.start",
]


class InstallStartupFiles(Command):
    """Copies ``STARTUP_FILES`` next to the packages that a wheel installs."""

    user_options = []

    def initialize_options(self):
        self.install_dir = None
        self.outfiles = []

    def finalize_options(self):
        self.set_undefined_options("install", ("install_headers", "install_dir"))

    def run(self):
        purelib = os.path.join(os.path.dirname(self.install_dir), "purelib")
        self.mkpath(purelib)
        for path in STARTUP_FILES:
            target, _ = self.copy_file(path, purelib)
            self.outfiles.append(target)

    def get_outputs(self):
        return self.outfiles


setup(cmdclass={"install_headers": InstallStartupFiles}, headers=STARTUP_FILES)
