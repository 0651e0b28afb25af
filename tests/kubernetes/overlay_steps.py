"""Steps of the plain manifests: every overlay of k8s/ that this node can run serves a prompt."""

import json
import re

import load
from kube import command, is_ready
from processes import wait_until
from steps import EXPECTED

# Objects that need what no CPU node has: validated by the API server, not run.
HARDWARE = re.compile(r"rdma/|nvidia\.com/|amd\.com/")


def overlays(root):
    return sorted(path.parent for path in (root / "k8s" / "overlays").glob("*/kustomization.yaml"))


def rendered(folder):
    return command("kubectl", "kustomize", folder)


def needs_hardware(manifest):
    return HARDWARE.search(manifest) is not None


def with_image(manifest, image):
    """The manifest with every baton container's image replaced: what `kustomize edit set image` does, which
    would have to write into the checkout."""
    return re.sub(r"(?m)^(\s*(?:- )?image:) \S*baton\S*$", rf"\1 {image[0]}:{image[1]}", manifest)


def validate(kube, manifest):
    """The API server's own word on objects that are not to run: `apply --dry-run=server`."""
    return kube.kubectl("apply", "--dry-run=server", "-f", "-", stdin=manifest)


def fitted(objects, namespace):
    """What lets an overlay made for several machines run on one of two cores: small requests, and workers that
    may share a node. Nothing else is touched."""
    for item in objects:
        item["metadata"]["namespace"] = namespace
        template = item.get("spec", {}).get("template", {}).get("spec")
        if item["kind"] in ("Deployment", "StatefulSet") and template:
            template.pop("affinity", None)
            for container in template["containers"]:
                container.setdefault("resources", {})["requests"] = {"cpu": "50m", "memory": "128Mi"}
    return objects


def parse(kube, manifest):
    """Objects of a manifest, as kubectl reads them; it prints them one after another."""
    text = kube.kubectl("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-", stdin=manifest)
    decoder, objects = json.JSONDecoder(), []
    while text := text.lstrip():
        item, end = decoder.raw_decode(text)
        objects += item["items"] if item["kind"] == "List" else [item]
        text = text[end:]
    return objects


def claim(namespace, folder):
    """The claim `model` of components/model-pvc, and a volume for it: a folder of this machine."""
    size = {"storage": "1Gi"}
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": namespace},
         "spec": {**common, "capacity": size, "persistentVolumeReclaimPolicy": "Retain",
                  "hostPath": {"path": str(folder), "type": "Directory"},
                  "claimRef": {"namespace": namespace, "name": "model"}}},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "model", "namespace": namespace},
         "spec": {**common, "volumeName": namespace, "resources": {"requests": size}}}]


def service_of(kube, namespace):
    for service in kube.items(f"/api/v1/namespaces/{namespace}/services"):
        if service["spec"].get("clusterIP") not in (None, "None"):
            for port in service["spec"]["ports"]:
                if port.get("name") == "http":
                    return service["spec"]["clusterIP"], port["port"]
    raise LookupError(f"no Service of {namespace} has a port called http")


def wait_ready(kube, objects, namespace, seconds=900):
    """Until every pod that the overlay's workloads ask for is Ready."""
    wanted = sum(item["spec"].get("replicas", 1) for item in objects
                 if item["kind"] in ("Deployment", "StatefulSet"))

    def ready():
        pods = kube.pods(namespace, "app.kubernetes.io/name")
        return len(pods) == wanted and all(map(is_ready, pods.values()))
    wait_until(ready, seconds, f"{wanted} Ready pods in {namespace}", 0.5)
    return wanted


def check(kube, folder, image, models, steps):
    """Applies the overlay, awaits its pods, asks it, deletes it. `models` holds the directories that it names."""
    namespace = f"overlay-{folder.name}"
    kube.kubectl("create", "namespace", namespace)
    try:
        kube.apply(claim(namespace, models))
        objects = fitted(parse(kube, with_image(rendered(folder), image)), namespace)
        kube.apply(objects)
        pods = wait_ready(kube, objects, namespace)
        address = service_of(kube, namespace)

        def answered():
            try:
                return load.complete(address, "It is a truth", 16)
            except load.BadAnswer as error:
                raise OSError(str(error)) from error
        text = wait_until(answered, 300, f"an answer from {folder.name}", 0.5)
        steps.note(f"{pods} pods; {text!r}")
    except EXPECTED:
        steps.note(kube.diagnose(namespace))  # before all that it can tell is gone
        raise
    finally:
        kube.kubectl("delete", "namespace", namespace, "--wait=true", "--timeout=10m", timeout=700)
        kube.kubectl("delete", "persistentvolume", namespace, "--ignore-not-found")
