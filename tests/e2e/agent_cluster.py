"""A cluster that agents' endpoints are tested on, and their streams."""

import contextlib
import json
import pathlib
import urllib.request

import cluster as clusters

ROOT = pathlib.Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def austen(log_dir, *router_flags):
    """The model that ships, with a chat template that takes tools."""
    template = ROOT / "common/tokenizer/chat/testdata/templates/hermes_tools.jinja"
    with clusters.Cluster(str(ROOT / "models/austen"), log_dir, stages=2, decodes=1,
                          router_flags=["--served-model-name", "austen", "--chat-template", template,
                                        *router_flags]) as cluster:
        yield cluster


def events(cluster, path, body):
    """The data of a stream's events; each has its type as its name."""
    request = urllib.request.Request(cluster.url + path, json.dumps({**body, "stream": True}).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60 * clusters.PATIENCE) as reply:
        assert reply.headers["Content-Type"] == "text/event-stream"
        text = reply.read().decode()
    found = []
    for event in filter(None, text.split("\n\n")):
        if event == ":":
            continue
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == "event: " + found[-1]["type"]
    return found
