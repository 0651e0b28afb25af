"""Configuration files and command lines of the node's programs, as data: nothing is started here."""

import json

NODE = "baton-node"
POD_NET = "10.244.0.0/24"
SERVICE_NET = "10.96.0.0/24"
API_SERVICE, DNS_SERVICE = "10.96.0.1", "10.96.0.10"
# DNS on its own port, since that is the one that NetworkPolicies open.
API_PORT, DNS_PORT = 6443, 53
DNS_READY_PORT = 8181
ETCD = "http://127.0.0.1:2379"
ETCD_PEER = "http://127.0.0.1:2380"
PAUSE_IMAGE = "localhost/pause:1"


def containerd(work, cni_bin, restrict_oom):
    return f"""version = 2
root = "{work}/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = {str(restrict_oom).lower()}
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_bin}"
    conf_dir = "{work}/cni"
"""


def network(work):
    """Point-to-point links and not a bridge: traffic between pods is then routed by the node, where policy.py
    filters it like all other traffic."""
    return {"cniVersion": "0.4.0", "name": "baton-pods", "plugins": [
        {"type": "ptp", "ipMasq": False,
         "ipam": {"type": "host-local", "dataDir": f"{work}/ipam", "ranges": [[{"subnet": POD_NET}]],
                  "routes": [{"dst": "0.0.0.0/0"}]}},
        {"type": "portmap", "capabilities": {"portMappings": True}}]}


def kubelet(work, cgroup):
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "failCgroupV1": False, "cgroupDriver": "cgroupfs", "cgroupRoot": cgroup, "failSwapOn": False,
        "containerRuntimeEndpoint": "unix:///run/containerd.sock",
        "makeIPTablesUtilChains": False,
        "podLogsDir": f"{work}/pod-logs", "volumePluginDir": f"{work}/kubelet/plugins",
        "tlsCertFile": f"{work}/pki/kubelet.crt", "tlsPrivateKeyFile": f"{work}/pki/kubelet.key",
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True},
                           "x509": {"clientCAFile": f"{work}/pki/ca.crt"}},
        "authorization": {"mode": "Webhook"},
        "clusterDomain": "cluster.local", "clusterDNS": [DNS_SERVICE],
        "nodeStatusUpdateFrequency": "5s",
        # The machine's disk and memory are other people's too: evict late, and never collect the images.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
    }


def kube_proxy(work):
    return {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables",
            "clusterCIDR": POD_NET, "hostnameOverride": NODE,
            "clientConnection": {"kubeconfig": f"{work}/conf/proxy.conf"}, "conntrack": {"maxPerCore": 0}}


def corefile(work, node_ip):
    return f""".:{DNS_PORT} {{
  bind {node_ip}
  errors
  ready 127.0.0.1:{DNS_READY_PORT}
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {work}/conf/dns.conf
    ttl 1
  }}
}}
"""


def dns_objects(node_ip):
    """CoreDNS is a process of the node behind a Service without a selector."""
    def rule(group, *resources):
        return {"apiGroups": [group], "resources": list(resources), "verbs": ["list", "watch"]}
    ports = [{"name": "dns", "port": DNS_PORT, "protocol": "UDP"},
             {"name": "dns-tcp", "port": DNS_PORT, "protocol": "TCP"}]
    rbac = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": "baton-dns"},
         "rules": [rule("", "services", "pods", "namespaces"), rule("discovery.k8s.io", "endpointslices")]},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "baton-dns"},
         "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "baton-dns"},
         "subjects": [{"apiGroup": rbac, "kind": "User", "name": "baton:dns"}]},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kube-dns", "namespace": "kube-system"},
         "spec": {"clusterIP": DNS_SERVICE, "ports": [
             {**port, "port": 53, "targetPort": DNS_PORT} for port in ports]}},
        {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
         "metadata": {"name": "kube-dns", "namespace": "kube-system",
                      "labels": {"kubernetes.io/service-name": "kube-dns"}},
         "addressType": "IPv4", "ports": ports,
         "endpoints": [{"addresses": [node_ip], "conditions": {"ready": True}}]}]


def etcd_command(work):
    # No fsync: a test cluster is no store of record.
    return ["--name", NODE, "--data-dir", f"{work}/etcd", "--unsafe-no-fsync", "--log-level", "warn",
            "--listen-client-urls", ETCD, "--advertise-client-urls", ETCD, "--listen-peer-urls", ETCD_PEER,
            "--initial-advertise-peer-urls", ETCD_PEER, "--initial-cluster", f"{NODE}={ETCD_PEER}"]


def apiserver_command(work, node_ip):
    pki = f"{work}/pki"
    return ["--etcd-servers", ETCD, "--secure-port", API_PORT, "--advertise-address", node_ip,
            "--service-cluster-ip-range", SERVICE_NET, "--allow-privileged=true", "--profiling=false",
            "--tls-cert-file", f"{pki}/apiserver.crt", "--tls-private-key-file", f"{pki}/apiserver.key",
            "--client-ca-file", f"{pki}/ca.crt", "--token-auth-file", f"{pki}/tokens.csv",
            "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction",
            "--kubelet-certificate-authority", f"{pki}/ca.crt",
            "--kubelet-client-certificate", f"{pki}/to-kubelet.crt", "--kubelet-client-key", f"{pki}/to-kubelet.key",
            "--kubelet-preferred-address-types", "InternalIP",
            "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-account-key-file", f"{pki}/sa.key", "--service-account-signing-key-file", f"{pki}/sa.key"]


def leaderless(work, name):
    config = f"{work}/conf/{name}.conf"
    return ["--kubeconfig", config, "--authentication-kubeconfig", config, "--authorization-kubeconfig", config,
            "--leader-elect=false", "--bind-address", "127.0.0.1"]


def controllers_command(work):
    return [*leaderless(work, "controllers"), "--use-service-account-credentials",
            "--service-account-private-key-file", f"{work}/pki/sa.key", "--root-ca-file", f"{work}/pki/ca.crt"]


def scheduler_command(work):
    return leaderless(work, "scheduler")


def kubelet_command(work, node_ip):
    return ["--config", f"{work}/conf/kubelet.yaml", "--kubeconfig", f"{work}/conf/kubelet.conf",
            "--root-dir", f"{work}/kubelet", "--cert-dir", f"{work}/pki", "--hostname-override", NODE,
            "--node-ip", node_ip]


def write_all(work, cgroup, node_ip, cni_bin, restrict_oom):
    files = {"conf/containerd.toml": containerd(work, cni_bin, restrict_oom), "conf/Corefile": corefile(work, node_ip),
             "cni/10-pods.conflist": network(work), "conf/kubelet.yaml": kubelet(work, cgroup),
             "conf/proxy.yaml": kube_proxy(work)}
    for name, content in files.items():
        path = work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1), encoding="utf-8")
