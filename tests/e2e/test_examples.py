"""What examples/ shows works: the C++ client, the Python package in place and installed, OpenAI's client."""

import os
import pathlib
import shutil
import subprocess

import pytest

import cluster as clusters

EXAMPLES = clusters.ROOT / "examples"
KEY = "a key with spaces"


@pytest.fixture(scope="module")
def guarded_cluster(tiny_model, tmp_path_factory):
    """A cluster whose clients must present KEY."""
    with clusters.Cluster(tiny_model, tmp_path_factory.mktemp("logs"), stages=1, flags=["--page-size", 16],
                          router_flags=["--served-model-name", "tiny", "--api-key", KEY]) as cluster:
        yield cluster


def run(*command, **environment):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **environment})


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A virtual environment with baton_client, installed from the tree without a network."""
    directory = tmp_path_factory.mktemp("client")
    # A copy: pip leaves its build folder beside what it installs.
    for folder in ("proto", "examples/python"):
        shutil.copytree(clusters.ROOT / folder, directory / "tree" / folder)
    # Debian's own pip from outside: to put one into the environment takes longer than all the rest.
    made = run("/usr/bin/python3", "-m", "venv", "--without-pip", "--system-site-packages", directory / "venv")
    assert made.returncode == 0, made.stderr
    wheel = next(pathlib.Path("/usr/share/python-wheels").glob("pip-*.whl"))
    install = run("/usr/bin/python3", wheel / "pip", "--python", directory / "venv/bin/python", "install", "-q",
                  "--no-index", "--no-build-isolation", "--disable-pip-version-check",
                  directory / "tree/examples/python")
    assert install.returncode == 0, install.stdout + install.stderr
    return directory / "venv/bin/python"


def test_cpp_client(small_cluster):
    ended = run(clusters.ROOT / "bazel-bin/examples/cpp/generate", small_cluster.target, "hello")
    assert ended.returncode == 0 and "5 + " in ended.stdout, ended.stderr


def test_python_client_in_place(guarded_cluster, tmp_path):
    made = run("/usr/bin/python3", EXAMPLES / "python/make_stubs.py")
    assert made.returncode == 0, made.stderr
    script = [EXAMPLES / "python/generate.py", "--target", guarded_cluster.target, "--max-tokens", "5", "hello"]
    ended = run("/usr/bin/python3", *script, "--api-key", KEY)
    assert ended.returncode == 0 and "5 + 5 tokens" in ended.stdout, ended.stderr
    chat = run("/usr/bin/python3", *script, "--api-key", KEY, "--chat")
    assert chat.returncode == 0 and " + 5 tokens" in chat.stdout, chat.stderr
    refused = run("/usr/bin/python3", *script, "--api-key", "another")
    assert refused.returncode == 1 and refused.stderr.startswith("UNAUTHENTICATED"), refused.stderr


def test_python_client_installed(guarded_cluster, installed):
    ended = run(installed, EXAMPLES / "python/generate.py", "--target", guarded_cluster.target, "--max-tokens", "5",
                "--seed", "3", "hello", BATON_API_KEY=KEY, PYTHONSAFEPATH="1")
    assert ended.returncode == 0 and "5 + 5 tokens" in ended.stdout, ended.stderr


PROGRAM = """
import sys, baton_client
with baton_client.Client(sys.argv[1], sys.argv[2]) as client:
    assert client.model_info().served_model_name == "tiny"
    ids = client.tokenize("hello")
    assert client.detokenize(ids) == "hello"
    greedy = dict(max_tokens=6, temperature=0, ignore_eos=True)
    whole, again = client.generate("hello", **greedy), client.generate(ids, **greedy)
    assert whole.token_ids == again.token_ids and len(whole.token_ids) == 6, (whole, again)
    assert whole.finish_reason == "length" and whole.usage.prompt_tokens == 5
    question = [{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]
    answer = client.chat([{"role": "user", "content": "hel\\nlo"}], **greedy)
    assert answer.token_ids == client.chat(question, **greedy).token_ids and len(answer.token_ids) == 6, answer
    with client.chat_stream(question, **greedy) as stream:
        assert "".join(piece.text for piece in stream) == answer.text
    with client.stream("hello", request_id="long", max_tokens=4000, ignore_eos=True) as stream:
        next(iter(stream))
        client.abort("long")
    try:
        client.generate("hello", max_tokens=-1)
        raise SystemExit("a negative max_tokens was accepted")
    except baton_client.Error as error:
        assert error.code == "INVALID_ARGUMENT" and "max_tokens" in error.message, error
print(baton_client.__file__)
"""


def test_python_package(guarded_cluster, installed, tmp_path):
    ended = run(installed, "-c", PROGRAM, guarded_cluster.target, KEY)
    assert ended.returncode == 0, ended.stderr
    assert "site-packages" in ended.stdout


@pytest.mark.registry
def test_openai_example(guarded_cluster, openai_python):
    ended = run(openai_python, EXAMPLES / "python/openai_client.py", "--base-url", guarded_cluster.url + "/v1",
                "--max-tokens", "5", "--seed", "3", "hello", "--api-key", KEY)
    assert ended.returncode == 0 and "5 + 5 tokens" in ended.stdout and "[chat]" in ended.stdout, ended.stderr


def test_openai_example_says_what_it_lacks(guarded_cluster):
    ended = run("/usr/bin/python3", "-S", EXAMPLES / "python/openai_client.py", "hello")
    assert ended.returncode == 77 and "pip install openai" in ended.stderr, ended.stderr
