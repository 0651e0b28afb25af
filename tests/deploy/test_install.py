"""What `helm install` has beyond `helm template`: its notes, and values held against what the cluster has."""

import contextlib
import http.server
import json
import os
import shutil
import subprocess
import threading

import pytest
import yaml

from kit import CHART, LATEST, Refused, render_chart, run

NAMESPACE = "default"
RESOURCES = {"secrets": "Secret", "serviceaccounts": "ServiceAccount",
             "persistentvolumeclaims": "PersistentVolumeClaim"}


def notes(values, folder):
    """NOTES.txt as Helm prints it after an installation, for which it wants a cluster: rendered as a template here."""
    copy = folder / "chart"
    shutil.copytree(CHART, copy)
    text = (copy / "templates/NOTES.txt").read_text(encoding="utf-8")
    (copy / "templates/NOTES.txt").unlink()
    (copy / "templates/_notes.tpl").write_text('{{- define "notes" -}}\n' + text + "{{- end }}\n", encoding="utf-8")
    (copy / "templates/notes.yaml").write_text('text: {{ include "notes" . | toJson }}\n', encoding="utf-8")
    rendered = run(os.environ["HELM"], "template", "baton", copy, "--kube-version", LATEST, "--show-only",
                   "templates/notes.yaml", "--values", "-", text=yaml.safe_dump(values))
    return yaml.safe_load(rendered)["text"]


def curl_of(text):
    """The command that asks for tokens, as a user copies it."""
    start = text.index("curl -sN")
    return text[start:text.index("stream", start)] + 'stream": true}\''


@pytest.mark.parametrize("values, words", [
    ({}, ["curl -sN http://localhost:30000", '"model": "austen"', "No API key", "networkPolicy.enabled is false"]),
    ({"auth": {"existingSecret": "keys", "secretKey": "baton.key"}},
     ["Authorization: Bearer", r"{.data.baton\.key}"]),
    ({"router": {"tls": {"existingSecret": "cert"}}}, ["curl -sNk https://localhost:30000"]),
    ({"model": {"servedName": "my-model"}, "networkPolicy": {"enabled": True}}, ['"model": "my-model"']),
])
def test_the_notes_hold_a_line_that_works(values, words, tmp_path):
    text = notes(values, tmp_path)
    for word in words:
        assert word in text
    assert ("No API key" in text) == ("auth" not in values)
    assert ("any pod of" in text) == ("networkPolicy" not in values)
    checked = subprocess.run(["bash", "-n", "-c", curl_of(text)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "port-forward service/baton-router 30000:30000" in text


class FakeCluster(http.server.BaseHTTPRequestHandler):
    """As much of the Kubernetes API as Helm's `lookup` asks for; `objects` is {(resource, name): object}."""

    objects = {}

    def do_GET(self):
        path = self.path.split("?")[0].strip("/")
        parts = path.split("/")
        found = {
            "version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
            "api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
            "apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
            "api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [
                {"name": name, "kind": kind, "namespaced": True, "singularName": "", "verbs": ["get"]}
                for name, kind in RESOURCES.items()]},
        }.get(path)
        if found is None and len(parts) == 6 and parts[:4] == ["api", "v1", "namespaces", NAMESPACE]:
            found = self.objects.get((parts[4], parts[5]))
        body = json.dumps(found or {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
                                    "code": 404}).encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def cluster(objects):
    made = {("serviceaccounts", "default"): {"kind": "ServiceAccount", "apiVersion": "v1",
                                             "metadata": {"name": "default"}}}
    for resource, name, data in objects:
        made[resource, name] = {"kind": RESOURCES[resource], "apiVersion": "v1", "metadata": {"name": name}, **data}
    handler = type("Handler", (FakeCluster,), {"objects": made})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield ("--dry-run=server", "--kube-apiserver", f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()


NAMED = {"checkReferences": True, "auth": {"existingSecret": "keys"}, "imagePullSecrets": [{"name": "registry"}],
         "model": {"source": "pvc", "pvc": {"claimName": "models"}},
         "router": {"tls": {"existingSecret": "cert"},
                    "ingress": {"enabled": True, "hosts": ["a"], "tlsSecret": "edge"}},
         "serviceAccount": {"create": False, "name": "mine"}}
THERE = [("secrets", "keys", {"data": {"api-key": "eA=="}}), ("secrets", "registry", {}), ("secrets", "edge", {}),
         ("secrets", "cert", {"data": {"tls.crt": "", "tls.key": ""}}), ("persistentvolumeclaims", "models", {}),
         ("serviceaccounts", "mine", {})]


def test_what_the_namespace_lacks_is_named():
    with cluster([]) as flags, pytest.raises(Refused) as refused:
        render_chart(NAMED, flags=flags)
    message = str(refused.value)
    for words in ("auth.existingSecret: there is no Secret keys", "imagePullSecrets: there is no Secret registry",
                  "router.tls.existingSecret: there is no Secret cert",
                  "router.ingress.tlsSecret: there is no Secret edge",
                  "model.pvc.claimName: there is no PersistentVolumeClaim models",
                  "serviceAccount.name: there is no ServiceAccount mine"):
        assert words in message
    assert "namespace default has not" in message


def test_secrets_need_their_keys():
    without = [("secrets", "keys", {"data": {"other": ""}}), ("secrets", "cert", {}), *THERE[1:3], *THERE[4:]]
    with cluster(without) as flags:
        with pytest.raises(Refused) as refused:
            render_chart(NAMED, flags=flags)
    assert "auth.secretKey: the Secret keys has no key api-key" in str(refused.value)
    assert "the Secret cert has no tls.crt and tls.key" in str(refused.value)
    assert str(refused.value).count("\n  - ") == 2


def test_what_is_there_passes():
    with cluster(THERE) as flags:
        render_chart(NAMED, flags=flags)


def test_nothing_is_asked_unless_it_is_wished():
    with cluster([]) as flags:
        render_chart({**NAMED, "checkReferences": False}, flags=flags)


def test_without_a_cluster_nothing_is_missing():
    render_chart(NAMED)
