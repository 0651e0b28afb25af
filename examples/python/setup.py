"""Adds the stubs to the package while it is built; everything else is in pyproject.toml."""

import pathlib
import sys

from setuptools import setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from make_stubs import make_stubs  # noqa: E402


class BuildWithStubs(build_py):
    def run(self):
        super().run()
        make_stubs(pathlib.Path(self.build_lib) / "baton_client" / "v1")


setup(cmdclass={"build_py": BuildWithStubs})
