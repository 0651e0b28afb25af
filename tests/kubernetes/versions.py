"""Which versions the check runs: the one place beside node/go.mod and dns/go.mod, which pin Kubernetes with
its etcd, and CoreDNS. What is named here is built as its own go.mod says, by `go install PACKAGE@VERSION`.
"""

import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent

GO = (1, 24)
HELM = "helm.sh/helm/v3/cmd/helm@v3.19.5"
# Controllers of LeaderWorkerSet and DisaggregatedSet. Its go.mod asks for Go 1.26: an older compiler skips them.
LWS = "sigs.k8s.io/lws/cmd@v0.9.0"
# CRDs that the API server is given: {module: files in it}. Those of objects that the chart can make, no others:
# each makes the API server work out its schema anew.
CRDS = {
    "sigs.k8s.io/lws@v0.9.0": [
        "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
        "config/crd/bases/disaggregatedset.x-k8s.io_disaggregatedsets.yaml"],
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": [
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml"],
    "github.com/kedacore/keda/v2@v2.21.0": ["config/crd/bases/keda.sh_scaledobjects.yaml"],
    "sigs.k8s.io/gateway-api@v1.4.0": [
        "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
        "config/crd/standard/gateway.networking.k8s.io_grpcroutes.yaml"],
}

# Debian's container runtime and what the node's programs call: {command: package}. `./dev setup` does not
# install them, since nothing else needs them.
CNI_BIN = pathlib.Path("/usr/lib/cni")
DEBIAN = {"containerd": "containerd", "ctr": "containerd", "runc": "runc", "nft": "nftables", "ip": "iproute2",
          "unshare": "util-linux", "openssl": "openssl", str(CNI_BIN / "ptp"): "containernetworking-plugins"}


def kubernetes():
    """The pinned version of Kubernetes, such as v1.34.4."""
    text = (HERE / "node" / "go.mod").read_text(encoding="utf-8")
    return re.search(r"^\s*k8s\.io/kubernetes (v\S+)", text, re.MULTILINE).group(1)
