"""Fixtures of the end-to-end tests: models that are made once, and small clusters to share."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "oracle"))

import cluster as clusters  # noqa: E402


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Six layers of Qwen3 with a byte-level tokenizer: ids 0..255 are bytes."""
    return clusters.make_model(tmp_path_factory.mktemp("model") / "tiny", layers=6)


@pytest.fixture(scope="module")
def small_cluster(tiny_model, tmp_path_factory):
    """Two stages and one decode, shared by the tests of a module."""
    with clusters.Cluster(tiny_model, tmp_path_factory.mktemp("logs"), stages=2,
                          flags=["--page-size", 16], router_flags=["--served-model-name", "tiny"]) as cluster:
        yield cluster
