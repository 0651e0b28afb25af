"""Steps that run nothing: objects of features that this node lacks the means for, judged by the API server.

Every field is checked strictly (an unknown one fails), defaults and CRDs' rules included, as `kubectl apply
--dry-run=server` does it.
"""

import json

import release as releases
from kube import command

HOSTS = ["baton.example"]
HPA = {"enabled": True, "kind": "HPA", "minReplicas": 1, "maxReplicas": 3}
KEDA = {"enabled": True, "kind": "KEDA", "minReplicas": 1, "maxReplicas": 3,
        "keda": {"serverAddress": "http://prometheus.example:9090"}}
RDMA = {"rdma": {"enabled": True}, "shm": {"enabled": True}}
# {what: (values, module of the CRDs that it needs)}
FEATURES = {
    "HPA of router and decode": ({"router": {"autoscaling": HPA}, "decode": {"autoscaling": HPA}}, None),
    "KEDA of decode": ({"decode": {"autoscaling": KEDA}}, "keda"),
    "an Ingress": ({"router": {"ingress": {"enabled": True, "className": "any", "hosts": HOSTS,
                                           "tlsSecret": "certificate"}}}, None),
    "routes of the Gateway API": ({"router": {"gateway": {"enabled": True, "hostnames": HOSTS,
                                                          "parentRefs": [{"name": "outside"}]}}}, "gateway-api"),
    "RDMA and shared memory": ({"prefill": RDMA, "decode": RDMA}, None),
    "an OCI volume": ({"model": {"source": "ociVolume", "path": "/models/m",
                                 "ociVolume": {"reference": "registry.example/models/m:1"}}}, None),
    "an init container": ({"model": {"source": "initContainer", "path": "/models/m",
                                     "initContainer": {"image": "registry.example/fetch:1"}}}, None),
    "discovery by the Kubernetes API": ({"discovery": {"mode": "kubernetes"}}, None),
    "monitoring": ({"monitoring": {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True},
                                   "dashboards": {"enabled": True}}}, "prometheus-operator"),
}


def lacks(chart, changes):
    """What of the values this version of Baton has not: discovery by the API came later than the chart."""
    options = json.loads((chart / "files" / "options.json").read_text(encoding="utf-8"))
    return "option service_discovery" if "discovery" in changes and "service_discovery" not in options else ""


def check(kube, chart, changes):
    """Number of objects that the API server takes."""
    chosen = releases.values(**changes)
    manifest = command("helm", "template", "accepted", chart, "--validate", "--no-hooks", "-f", "-",
                       stdin=json.dumps(chosen))
    said = kube.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=manifest)
    return len(said.splitlines())
