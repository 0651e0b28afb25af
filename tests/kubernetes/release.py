"""One installation of the chart, driven with helm as an operator would."""

import json

import load
import versions
from kube import Failed, command
from processes import wait_until

ROLES = ("router", "prefill", "decode")
NAME = "app.kubernetes.io/instance"
WAIT = "6m"
WAITING = ("--wait", "--timeout", WAIT)
# Room for several installations on a machine of two cores; austen needs 100 MB a process.
SMALL = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}


def values(**more):
    """The values that every installation here starts from: a chain of two stages and two decode services."""
    base = {
        "router": {"replicas": 1, "resources": SMALL},
        "prefill": {"replicas": 1, "parallelism": {"pp": 2}, "resources": SMALL},
        "decode": {"replicas": 2, "resources": SMALL},
        "drain": {"timeoutSeconds": 120},
    }
    return merged(base, more)


def merged(base, more):
    if not (isinstance(base, dict) and isinstance(more, dict)):
        return more
    return {**base, **{key: merged(base[key], value) if key in base else value for key, value in more.items()}}


class Release:
    """`image` is (repository, tag)."""

    def __init__(self, kube, chart, image, namespace, name="test"):
        self.kube, self.chart, self.image, self.namespace, self.name = kube, chart, image, namespace, name
        self.values = None

    def set_image(self, image):
        self.image = image

    def _helm(self, verb, *flags):
        chosen = merged(self.values, {"image": {"repository": self.image[0], "tag": self.image[1],
                                                "pullPolicy": "Never"}})
        # JSON is YAML.
        return command("helm", verb, self.name, self.chart, "-n", self.namespace, "-f", "-", *flags,
                       stdin=json.dumps(chosen), timeout=1200)

    def apply_rendered(self, chosen):
        """Past helm: what `helm template` writes, which cannot look into the cluster."""
        self.values = chosen
        self.kube.apply(self._helm("template", "--kube-version", versions.kubernetes(), "--no-hooks"),
                        namespace=self.namespace)

    def install(self, chosen, wait=True):
        self.values = chosen
        return self._helm("install", "--create-namespace", *(WAITING if wait else ()))

    def upgrade(self, wait=True, **changes):
        before, self.values = self.values, merged(self.values, changes)
        try:
            return self._helm("upgrade", *(WAITING if wait else ()))
        except Failed:
            self.values = before  # or each later upgrade would be refused for this one's sake
            raise

    def uninstall(self):
        return command("helm", "uninstall", self.name, "-n", self.namespace, "--wait", "--timeout", WAIT, timeout=1200)

    def selector(self, role):
        return f"{NAME}={self.name},app.kubernetes.io/component={role}"

    def pods(self, role):
        return self.kube.pods(self.namespace, self.selector(role))

    def wait_ready(self, counts, seconds=600):
        """{role: pods} are Ready."""
        for role, count in counts.items():
            self.kube.wait_pods(self.namespace, self.selector(role), count, seconds)

    def service(self):
        """The router's Service: (cluster address, HTTP port)."""
        found = [each for each in self.kube.items(f"/api/v1/namespaces/{self.namespace}/services",
                                                  labelSelector=self.selector("router"))
                 if each["spec"]["clusterIP"] != "None"]
        if len(found) != 1:
            raise RuntimeError(f"{len(found)} Services of the router have a cluster address")
        port = next(port["port"] for port in found[0]["spec"]["ports"] if port["name"] == "http")
        return found[0]["spec"]["clusterIP"], port

    def complete(self, prompt, max_tokens, address=None):
        return load.complete(address or self.service(), prompt, max_tokens)

    def wait_serving(self, seconds=300, address=None):
        """Until a short prompt is answered."""
        def answered():
            try:
                return self.complete("It is", 2, address)
            except load.BadAnswer as error:
                raise OSError(str(error)) from error  # wait_until names it at the deadline
        wait_until(answered, seconds, f"an answer from {address or 'the Service'} in {self.namespace}", 0.5)

    def expected(self, prompts, max_tokens):
        """{prompt: text}, said by the undisturbed release."""
        return {prompt: self.complete(prompt, max_tokens) for prompt in prompts}

    def load(self, expected, max_tokens, streams=4):
        return load.Load(self.service(), expected, max_tokens, streams)

    def diagnose(self):
        return self.kube.diagnose(self.namespace)

    def delete_namespace(self):
        self.kube.kubectl("delete", "namespace", self.namespace, "--ignore-not-found", "--wait=true",
                          "--timeout=10m", timeout=700)
