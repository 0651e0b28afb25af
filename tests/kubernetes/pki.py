"""Keys, certificates, tokens and kubeconfigs of a cluster that lives as long as its check."""

import json
import pathlib
import secrets
import subprocess
import tempfile

USERS = {  # kubeconfig: (user, groups)
    "admin": ("admin", "system:masters"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "kubelet": ("system:node:{node}", "system:nodes"),
    "proxy": ("system:kube-proxy", ""),
    "dns": ("baton:dns", ""),
    "lws": ("baton:lws", "system:masters"),
}


def openssl(*arguments, **more):
    return subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, **more).stdout


def make_key(path):
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)


class Authority:
    """Signs what the cluster's processes show each other."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.certificate, self.key = self.folder / "ca.crt", self.folder / "ca.key"
        make_key(self.key)
        openssl("req", "-x509", "-new", "-key", self.key, "-subj", "/CN=baton-test-ca", "-days", 30,
                "-out", self.certificate)

    def sign(self, name, subject, extension):
        """NAME.crt and NAME.key for `subject`, usable as `extension` (openssl's words) says."""
        key, certificate = self.folder / f"{name}.key", self.folder / f"{name}.crt"
        make_key(key)
        request = openssl("req", "-new", "-key", key, "-subj", subject)
        with tempfile.NamedTemporaryFile("w", suffix=".cnf") as extensions:
            extensions.write(extension)
            extensions.flush()
            openssl("x509", "-req", "-CA", self.certificate, "-CAkey", self.key, "-CAcreateserial", "-days", 30,
                    "-out", certificate, "-extfile", extensions.name, input=request)
        return certificate, key


def make_all(folder, node, node_ip, service_ip):
    """Everything that conf.py's command lines name; {user: token}."""
    authority = Authority(folder)
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
             "localhost"]
    addresses = ["127.0.0.1", node_ip, service_ip]
    authority.sign("apiserver", "/CN=kube-apiserver", "subjectAltName=" + ",".join(
        [f"DNS:{name}" for name in names] + [f"IP:{address}" for address in addresses]))
    authority.sign("kubelet", f"/CN={node}", f"subjectAltName=DNS:{node},IP:{node_ip},IP:127.0.0.1")
    authority.sign("to-kubelet", "/O=system:masters/CN=kube-apiserver-to-kubelet", "extendedKeyUsage=clientAuth")
    authority.sign("webhook", "/CN=webhook", f"subjectAltName=IP:{node_ip}")
    openssl("genrsa", "-out", folder / "sa.key", 2048)
    tokens = {name: secrets.token_hex(16) for name in USERS}
    lines = [f'{tokens[name]},{user.format(node=node)},{name},"{groups}"' for name, (user, groups) in USERS.items()]
    (folder / "tokens.csv").write_text("\n".join(lines) + "\n", encoding="ascii")
    return tokens


def kubeconfig(path, server, authority, token):
    path.write_text(json.dumps({  # JSON is YAML
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]}), encoding="ascii")
    path.chmod(0o600)
