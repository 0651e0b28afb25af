"""The API server as tests need it: objects read over HTTPS, changed by kubectl, and what went wrong told.

Reads are plain requests, since a wait that starts kubectl for every look would keep a core busy.
"""

import json
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from processes import wait_until


class Failed(RuntimeError):
    """A command of the user's (kubectl, helm) that was refused; the message is what it printed."""


def command(*words, stdin=None, timeout=600):
    done = subprocess.run(list(map(str, words)), input=stdin, capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, words))[:200]}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def age_order(item):
    return item.get("lastTimestamp") or item.get("eventTime") or item["metadata"].get("creationTimestamp") or ""


class Kube:
    def __init__(self, server, authority, token):
        self.server, self.token = server, token
        self.context = ssl.create_default_context(cafile=str(authority))

    def _open(self, path, method="GET", body=None):
        request = urllib.request.Request(self.server + path, method=method, data=body,
                                         headers={"Authorization": f"Bearer {self.token}"})
        return urllib.request.urlopen(request, context=self.context, timeout=20)

    def text(self, path):
        with self._open(path) as answer:
            return answer.read().decode("utf-8", "replace")

    def get(self, path):
        return json.loads(self.text(path))

    def items(self, path, **query):
        return self.get(path + ("?" + urllib.parse.urlencode(query) if query else "")).get("items", [])

    def exists(self, path):
        try:
            self.get(path)
            return True
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return False
            raise

    def apply(self, objects, namespace=None):
        document = objects if isinstance(objects, str) else json.dumps(
            {"apiVersion": "v1", "kind": "List", "items": objects})
        # On the server's side, unvalidated by kubectl: it would download the whole of the API's schema first.
        return self.kubectl("apply", "--server-side", "--force-conflicts", "--validate=false", "-f", "-",
                            namespace=namespace, stdin=document)

    @staticmethod
    def kubectl(*words, namespace=None, stdin=None, timeout=600):
        return command("kubectl", *(("-n", namespace) if namespace else ()), *words, stdin=stdin, timeout=timeout)

    def pods(self, namespace, selector="", alive=True):
        """Pods by name; those that are on their way out only if `alive` is false."""
        found = self.items(f"/api/v1/namespaces/{namespace}/pods", **({"labelSelector": selector} if selector else {}))
        return {pod["metadata"]["name"]: pod for pod in found
                if not alive or "deletionTimestamp" not in pod["metadata"]}

    def wait_pods(self, namespace, selector, count, seconds=300):
        """Until exactly `count` pods match, all Ready; returns them."""
        def ready():
            found = self.pods(namespace, selector)
            return found if len(found) == count and all(map(is_ready, found.values())) else None
        return wait_until(ready, seconds, f"{count} Ready pods of {selector} in {namespace}")

    def logs(self, namespace, pod, container=None, previous=False, lines=40):
        query = {"tailLines": lines, **({"container": container} if container else {}),
                 **({"previous": "true"} if previous else {})}
        try:
            return self.text(f"/api/v1/namespaces/{namespace}/pods/{pod}/log?" + urllib.parse.urlencode(query))
        except urllib.error.HTTPError as error:
            try:
                return f"(no log: {json.loads(error.read())['message']})"
            except (ValueError, LookupError):
                return f"(no log: {error})"

    def events(self, namespace, pod=None):
        """One line an event, oldest first."""
        found = sorted(self.items(f"/api/v1/namespaces/{namespace}/events"), key=age_order)
        return [f"{event['type']:<8} {event['involvedObject']['kind']}/{event['involvedObject'].get('name')} "
                f"{event.get('reason')}: {' '.join((event.get('message') or '').split())}" for event in found
                if pod is None or event["involvedObject"].get("name") == pod]

    def diagnose(self, namespace):
        """What an operator would look at, in one place: pods, their events, the ends of their logs."""
        lines = [f"---- namespace {namespace}"]
        pods = self.pods(namespace, alive=False)
        for name, pod in pods.items():
            lines.append(f"pod {name}: {describe(pod)}")
        lines += ["events:"] + ["  " + line for line in self.events(namespace)[-40:]]
        for name, pod in pods.items():
            spec = pod["spec"]
            for container in spec.get("initContainers", []) + spec["containers"]:
                for previous in (True, False):
                    text = self.logs(namespace, name, container["name"], previous, 25)
                    if not (previous and text.startswith("(no log")):
                        lines.append(f"log of {name}/{container['name']}{' (before its restart)' * previous}:")
                        lines += ["  " + line for line in text.splitlines()]
        return "\n".join(lines)


def is_ready(pod):
    return any(each["type"] == "Ready" and each["status"] == "True"
               for each in pod["status"].get("conditions", []))


def describe(pod):
    """A pod's state in a line, as `kubectl get pods` would say it and a little more."""
    status = pod["status"]
    words = [status.get("phase", "?"), "ready" if is_ready(pod) else "not ready"]
    if "deletionTimestamp" in pod["metadata"]:
        words.append("terminating")
    for each in status.get("initContainerStatuses", []) + status.get("containerStatuses", []):
        state = each["state"].get("waiting") or each["state"].get("terminated")
        last = each.get("lastState", {}).get("terminated")
        words.append(f"{each['name']}: restarts {each['restartCount']}"
                     + (f", {state.get('reason')}" if state else "")
                     + (f" ({state['message']})" if state and state.get("message") else "")
                     + (f", last ended with {last.get('exitCode')} {last.get('reason')}" if last else ""))
    words += [each["message"] for each in status.get("conditions", [])
              if each["status"] == "False" and each.get("message") and each["type"] in ("PodScheduled",)]
    return "; ".join(words)
