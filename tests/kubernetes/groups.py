"""The controller of LeaderWorkerSet and DisaggregatedSet as a process of the node, with its webhooks.

Its webhooks name the chain's stages (labels, which the chart's pods read), and every pod of the cluster
passes them: they are installed for the steps that need them, and taken away again.
"""

import base64
import contextlib
import json
import socket

import sandbox

PORT = 9443
NAMESPACE = "lws-system"


def configuration(work):
    return {"apiVersion": "config.lws.x-k8s.io/v1alpha1", "kind": "Configuration",
            "leaderElection": {"leaderElect": False}, "internalCertManagement": {"enable": False},
            "webhook": {"host": sandbox.NODE_IP, "port": PORT, "certDir": str(work / "lws-certificates")},
            "metrics": {"bindAddress": "0"}, "health": {"healthProbeBindAddress": "127.0.0.1:9081"}}


def webhook(authority, kind, name, path, group, resource, operations):
    return {"apiVersion": "admissionregistration.k8s.io/v1", "kind": f"{kind}WebhookConfiguration",
            "metadata": {"name": name}, "webhooks": [
                {"name": f"{name}.test.local", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                 "failurePolicy": "Fail",
                 "clientConfig": {"url": f"https://{sandbox.NODE_IP}:{PORT}{path}", "caBundle": authority},
                 "rules": [{"apiGroups": [group], "apiVersions": ["v1"], "operations": operations,
                            "resources": [resource]}]}]}


def webhooks(authority):
    lws, ds = "leaderworkerset.x-k8s.io", "disaggregatedset.x-k8s.io"
    both = ["CREATE", "UPDATE"]
    return [
        webhook(authority, "Mutating", "groups-default", "/mutate-leaderworkerset-x-k8s-io-v1-leaderworkerset",
                lws, "leaderworkersets", both),
        webhook(authority, "Mutating", "groups-pods", "/mutate--v1-pod", "", "pods", ["CREATE"]),
        webhook(authority, "Validating", "groups-valid", "/validate-leaderworkerset-x-k8s-io-v1-leaderworkerset",
                lws, "leaderworkersets", both),
        webhook(authority, "Validating", "groups-valid-sets", "/validate-disaggregatedset-x-k8s-io-v1-disaggregatedset",
                ds, "disaggregatedsets", both)]


@contextlib.contextmanager
def controller(node, binary):
    """Runs the controller while the context lasts."""
    certificates = node.work / "lws-certificates"
    certificates.mkdir(exist_ok=True)
    for suffix in ("crt", "key"):
        (certificates / f"tls.{suffix}").write_bytes((node.work / "pki" / f"webhook.{suffix}").read_bytes())
    config = node.work / "conf" / "lws-configuration.yaml"
    config.write_text(json.dumps(configuration(node.work)), encoding="utf-8")
    node.processes.start("lws", binary, "--config", config, "--kubeconfig", node.work / "conf" / "lws.conf")
    objects = webhooks(base64.b64encode((node.work / "pki" / "ca.crt").read_bytes()).decode())

    def listening():
        socket.create_connection((sandbox.NODE_IP, PORT), timeout=2).close()
        return True
    try:
        node.processes.wait_ready("lws", listening, 180)
        node.kube.apply(objects)
        yield
    finally:
        node.kube.kubectl("delete", "--ignore-not-found", "-f", "-",
                          stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        node.processes.stop("lws")
