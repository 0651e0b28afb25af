"""Steps of bad input that only a cluster can find: an event or a log has to say it in one line."""

import re

import release as releases
from kube import Failed
from processes import wait_until
from steps import EXPECTED

# {case: (values, role that cannot start, what its log or an event must say in one line)}; a fourth is what
# helm says already, where the chart looks into the cluster. Whoever deploys without helm has the event alone.
CASES = {
    "the model's path is not there": (
        releases.values(model={"path": "/models/no-such-model"}), "decode",
        r"there is no directory '?/models/no-such-model"),
    "the claim is not bound": (
        releases.values(model={"source": "pvc", "path": "/models/austen", "pvc": {"claimName": "weights"}}), "decode",
        r'persistentvolumeclaim "weights" not found', r"there is no PersistentVolumeClaim weights"),
    "the claim waits for a volume": (
        releases.values(model={"source": "pvc", "path": "/models/austen", "pvc": {"claimName": "unbound"}}), "decode",
        r"unbound immediate PersistentVolumeClaims"),
    "the node lacks the directory of the model": (
        releases.values(model={"source": "hostPath", "path": "/models/austen", "hostPath": {"path": "/no/such"}}),
        "decode", r"hostPath type check failed: /no/such is not a directory"),
    "the API key's secret is missing": (
        releases.values(auth={"existingSecret": "no-such-secret"}), "router", r'secret "no-such-secret" not found',
        r"there is no Secret no-such-secret"),
    "the API key's secret has no such key": (
        releases.values(auth={"existingSecret": "empty-secret"}), "router",
        r"couldn't find key api-key in Secret \S*empty-secret", r"the Secret empty-secret has no key api-key"),
    "the image is not there": (
        releases.values(), "router", r'[Ii]mage "\S*no-such-tag" is not present'),
    "the image has no model": (
        releases.values(), "decode", r"there is no directory '?/models/austen"),
}
UNBOUND_CLAIM = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "unbound"},
                 "spec": {"accessModes": ["ReadOnlyMany"], "storageClassName": "",
                          "resources": {"requests": {"storage": "1Gi"}}}}
EMPTY_SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "empty-secret"}, "stringData": {"other": ""}}


def said_in_one_line(release, kube, role, pattern):
    """The line of an event, of the scheduler or of a log that says it; None while none does."""
    lines = []
    for name, pod in kube.pods(release.namespace, release.selector(role)).items():
        lines += kube.events(release.namespace, name)
        lines += [condition.get("message", "") for condition in pod["status"].get("conditions", [])]
        for previous in (False, True):
            lines += kube.logs(release.namespace, name, role, previous).splitlines()
        for status in pod["status"].get("containerStatuses", []):
            ended = status["state"].get("terminated") or status.get("lastState", {}).get("terminated") or {}
            lines += (ended.get("message") or "").splitlines()
    return next((line for line in lines if re.search(pattern, line)), None)


def refused_by_helm(release, chosen, pattern):
    """The line with which helm refuses to install; then installs past it, as `kubectl apply` of manifests would."""
    try:
        release.install({**chosen, "checkReferences": True}, wait=False)
    except Failed as error:
        line = next((line for line in str(error).splitlines() if re.search(pattern, line)), None)
        if line is None:
            raise
        release.apply_rendered(chosen)
        return line
    raise AssertionError(f"helm installed what it should refuse with {pattern!r}")


def check(release, kube, case, steps):
    """Installs without waiting, and waits for the words of the pod that cannot start."""
    chosen, role, pattern, *by_helm = CASES[case]
    kube.kubectl("create", "namespace", release.namespace)
    try:
        kube.apply([UNBOUND_CLAIM, EMPTY_SECRET], namespace=release.namespace)
        if by_helm:
            steps.note("helm: " + refused_by_helm(release, chosen, by_helm[0]).strip())
        else:
            release.install(chosen, wait=False)
        line = wait_until(lambda: said_in_one_line(release, kube, role, pattern), 240,
                          f"an event or a log line like {pattern!r} of {role}", 1.0)
        steps.note(line.strip())
    except EXPECTED:
        steps.note(release.diagnose())  # before the namespace and all that it can tell is gone
        raise
    finally:
        release.delete_namespace()
