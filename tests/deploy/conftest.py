"""Tests of chart and overlays need the tools that `./dev check deploy` gathers; without one its tests are skipped."""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "cluster"))

EVERYWHERE = ("HELM", "KUSTOMIZE")
NEEDED = {"test_schemas": ("KUBERNETES_VALIDATE", "CRDS"), "test_processes": ("BATON",)}


def pytest_collection_modifyitems(items):
    for item in items:
        needed = EVERYWHERE + NEEDED.get(item.path.stem, ())
        missing = [os.environ.get(f"{name}_MISSING") or f"{name} is not set; see ./dev check deploy"
                   for name in needed if not os.environ.get(name)]
        if missing:
            item.add_marker(pytest.mark.skip(reason="; ".join(missing)))


@pytest.fixture
def helm():
    return os.environ["HELM"]
