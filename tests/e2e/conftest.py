"""Fixtures of the end-to-end tests: models that are made once, and small clusters to share."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "cluster"), str(ROOT / "tests" / "oracle")]

import cluster as clusters  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "registry: installs from PyPI; `./dev check openai_client` runs these alone")


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


@pytest.fixture(scope="session")
def openai_python(tmp_path_factory):
    """A virtual environment with OpenAI's client, or a clear reason why there is none."""
    directory = tmp_path_factory.mktemp("openai")
    subprocess.run(["/usr/bin/python3", "-m", "venv", directory], check=True)
    install = subprocess.run([directory / "bin/pip", "install", "-q", "--disable-pip-version-check", "--retries", "1",
                              "--timeout", "15", "openai"], capture_output=True, text=True)
    if install.returncode != 0:
        pytest.skip("OpenAI's Python client comes from PyPI, which is not reached here: "
                    + (install.stderr.strip().splitlines() or ["no message"])[-1])
    return directory / "bin/python"
