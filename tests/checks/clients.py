"""Clients that people have, against a live cluster: ours in Go, OpenAI's and Anthropic's, lm-eval, agents.

    ./dev check clients
    /usr/bin/python3 tests/checks/clients.py [--only go,openai-python,openai-js,anthropic,lm-eval,agents]

Each comes from its registry (Go's module proxy, PyPI, npm) into a folder that is deleted again; where a
registry is not reached that client is skipped, and a line says so. The cluster serves the model that
ships, with a real tokenizer and a chat template that takes tools, on CPU.
"""

import argparse
import contextlib
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("tools/cluster", "tools/dev", "tests/clients")]

import agent_clients  # noqa: E402
import cluster as clusters  # noqa: E402
import evaluation_clients  # noqa: E402
import registries  # noqa: E402
from bazel import bazel  # noqa: E402
from client_run import KEY, MODEL, run  # noqa: E402
from tally import Tally, say  # noqa: E402


def go(tally, cluster, directory):
    """examples/go: stubs, build, a stream, a refusal."""
    # A copy: what is made stays out of the tree.
    for folder in ("proto", "examples/go"):
        shutil.copytree(ROOT / folder, directory / folder)
    client = directory / "examples/go"
    registries.go(client, "mod", "download")
    made = run([client / "make_stubs.sh"])
    tally.step("go: stubs are made", made.returncode == 0)
    tally.step("go: it builds and vets", run(["go", "build", "-o", "client", "."], cwd=client).returncode == 0
               and run(["go", "vet", "."], cwd=client).returncode == 0)
    tally.step("go: it is formatted", run(["gofmt", "-l", "main.go"], cwd=client).stdout == "")
    arguments = [client / "client", "-target", cluster.target, "-max-tokens", "5", "-temperature", "0"]
    done = run([*arguments, "-api-key", KEY, "It is a truth"])
    tally.step("go: it streams", done.returncode == 0 and "+ 5 tokens, first after" in done.stdout)
    refused = run([*arguments, "-api-key", "another", "It is"])
    tally.step("go: a wrong key is explained", refused.returncode == 1 and "Unauthenticated" in refused.stderr)
    refused = run([*arguments, "-max-tokens", "-1", "-api-key", KEY, "It is"])
    tally.step("go: a wrong field is named", refused.returncode == 1 and "max_tokens" in refused.stderr)


def openai_python(tally, cluster, directory):
    """OpenAI's Python client; the checks are those of the end-to-end tests, and our example."""
    python = registries.venv(directory / "venv", "openai")
    done = run([python, ROOT / "tests/e2e/openai_client_check.py", cluster.url + "/v1", KEY])
    tally.step("openai-python: models, completions, chat, responses, schemas, streams, errors", done.returncode == 0)
    done = run([python, ROOT / "examples/python/openai_client.py", "--base-url", cluster.url + "/v1", "--api-key", KEY,
                "--max-tokens", "5", "It is a truth"])
    tally.step("openai-python: the example", done.returncode == 0 and "+ 5 tokens" in done.stdout)


def openai_js(tally, cluster, directory):
    """OpenAI's JavaScript client."""
    registries.npm_install(directory, "openai")
    shutil.copy(ROOT / "tests/clients/openai_client.mjs", directory)
    done = run(["node", directory / "openai_client.mjs", cluster.url + "/v1", KEY])
    tally.step("openai-js: models, completions, chat, schemas, streams, errors", done.returncode == 0)


def anthropic(tally, cluster, directory):
    """Anthropic's Python client."""
    python = registries.venv(directory / "venv", "anthropic")
    done = run([python, ROOT / "tests/clients/anthropic_client.py", cluster.url, KEY])
    tally.step("anthropic: messages, tools, thinking, schemas, streams, counts, errors", done.returncode == 0)


CLIENTS = {"go": go, "openai-python": openai_python, "openai-js": openai_js, "anthropic": anthropic,
           **evaluation_clients.CLIENTS, **agent_clients.CLIENTS}


@contextlib.contextmanager
def serving(directory):
    """The shipped model behind a key, with a context that evaluations fit into, with tools and, if asked, thoughts."""
    plain = ROOT / "common/tokenizer/chat/testdata/templates/hermes_tools.jinja"
    template = pathlib.Path(directory) / "tools.jinja"
    template.write_text(plain.read_text() + "{% if add_generation_prompt %}<think>\n"
                        "{{ '\n</think>\n\n' if not enable_thinking }}{% endif %}")
    with clusters.Cluster(str(ROOT / "models/austen"), directory, stages=2, decodes=1,
                          router_flags=["--served-model-name", MODEL, "--api-key", KEY,
                                        "--chat-template", template]) as cluster:
        yield cluster


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CLIENTS), help="names, with commas")
    names = parser.parse_args().only.split(",")
    tally = Tally()
    if bazel("build", "//services/baton") != 0:
        tally.fail("build of //services/baton")
        return tally.finish()
    with tempfile.TemporaryDirectory(prefix="baton-clients-") as parent:
        with serving(parent) as cluster:
            for name in names:
                say(name)
                directory = pathlib.Path(parent) / name
                directory.mkdir()
                try:
                    CLIENTS[name](tally, cluster, directory)
                except registries.NotReached as reason:
                    tally.skip(name, str(reason))
                except subprocess.TimeoutExpired as error:
                    tally.fail(f"{name} did not end: {error}")
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
