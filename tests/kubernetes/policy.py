"""NetworkPolicies enforced on this node: the objects of the API server, as nftables rules on pods' traffic.

Why it exists: policy-capable network plugins are not among Debian's packages, and those that are Go modules
want ipsets or queues that not every kernel has. The rules follow the API's definition: a pod that no policy
selects is open; one that some select, for a direction, lets pass what any of them allows, and answers to it;
the node itself (kubelet's probes) always may. Peers by podSelector, namespaceSelector and ipBlock; ports by
number, name and range; TCP, UDP and SCTP.

It is read again every second, since pods' addresses change. Traffic between pods is routed by the node
(configs.network), so it passes the forward hook, after kube-proxy has put a pod's address for a Service's;
what pods send to the node itself passes the input hook.
"""

import http.client
import subprocess
import threading

TABLE = "baton-policies"
EVERY_SECONDS = 1.0


def matches(selector, labels):
    """A LabelSelector; the empty one matches everything."""
    for name, value in (selector.get("matchLabels") or {}).items():
        if labels.get(name) != value:
            return False
    for each in selector.get("matchExpressions") or []:
        value, values = labels.get(each["key"]), each.get("values") or []
        if not {"In": value in values, "NotIn": value not in values,
                "Exists": value is not None, "DoesNotExist": value is None}[each["operator"]]:
            return False
    return True


def running(pods):
    """Pods with an address of their own: those on the host's network are not what a policy can name."""
    return [pod for pod in pods if pod["status"].get("podIP") and not pod["spec"].get("hostNetwork")
            and pod["status"].get("phase") in ("Pending", "Running")]


def peer_addresses(peer, namespace, pods, namespaces):
    """Addresses or networks of one peer, and those to leave out."""
    if "ipBlock" in peer:
        return [peer["ipBlock"]["cidr"]], peer["ipBlock"].get("except") or []
    where = {namespace}
    if "namespaceSelector" in peer:
        where = {each["metadata"]["name"] for each in namespaces
                 if matches(peer["namespaceSelector"], each["metadata"].get("labels") or {})}
    chosen = peer.get("podSelector") or {}
    return [pod["status"]["podIP"] for pod in pods if pod["metadata"]["namespace"] in where
            and matches(chosen, pod["metadata"].get("labels") or {})], []


def named_port(pod, name):
    return [port["containerPort"] for container in pod["spec"]["containers"] for port in container.get("ports") or []
            if port.get("name") == name]


def port_matches(port, pods):
    """nft expressions of one NetworkPolicyPort; a name may be another number in each pod."""
    protocol = port.get("protocol", "TCP").lower()
    value = port.get("port")
    if value is None:
        return [f"meta l4proto {protocol}"]
    if isinstance(value, str):
        numbers = sorted({number for pod in pods for number in named_port(pod, value)})
    else:
        numbers = [f"{value}-{port['endPort']}" if "endPort" in port else value]
    return [f"{protocol} dport {number}" for number in numbers]


def rule_lines(rule, direction, policy, own, pods, namespaces):
    """nft rules that accept what one ingress or egress rule allows."""
    side = "saddr" if direction == "Ingress" else "daddr"
    peers = rule.get("from" if direction == "Ingress" else "to")
    wheres = [""] if not peers else []
    for peer in peers or []:
        addresses, excepted = peer_addresses(peer, policy["metadata"]["namespace"], pods, namespaces)
        if addresses:
            wheres.append(f"ip {side} {{ {', '.join(sorted(set(addresses)))} }}"
                          + (f" ip {side} != {{ {', '.join(excepted)} }}" if excepted else ""))
    ports = rule.get("ports")
    named = [own] if direction == "Ingress" else pods
    whats = [""] if not ports else [text for port in ports for text in port_matches(port, named)]
    return [f"{where} {what} accept".strip() for where in wheres for what in whats]


def ruleset(policies, pods, namespaces):
    """The whole table, as `nft -f` reads it."""
    pods = running(pods)
    chains, jumps = [], {"Ingress": [], "Egress": []}
    for pod in pods:
        for direction in ("Ingress", "Egress"):
            applying = [policy for policy in policies
                        if policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
                        and direction in policy["spec"].get("policyTypes", ["Ingress"])
                        and matches(policy["spec"].get("podSelector") or {}, pod["metadata"].get("labels") or {})]
            if not applying:
                continue
            address = pod["status"]["podIP"]
            chain = f"{direction.lower()}-{address.replace('.', '-')}"
            lines = [line for policy in applying for rule in policy["spec"].get(direction.lower()) or []
                     for line in rule_lines(rule, direction, policy, pod, pods, namespaces)]
            chains.append(f"  chain {chain} {{\n" + "".join(f"    {line.replace('accept', 'return')}\n"
                                                            for line in lines) + "    counter drop\n  }")
            jumps[direction].append(f"    ip {'daddr' if direction == 'Ingress' else 'saddr'} {address} jump {chain}")
    answers = "    ct state established,related accept"
    return "\n".join([
        f"table ip {TABLE}", f"delete table ip {TABLE}", f"table ip {TABLE} {{", *chains,
        "  chain forward {", "    type filter hook forward priority filter; policy accept;", answers,
        *jumps["Egress"], *jumps["Ingress"], "  }",
        "  chain input {", "    type filter hook input priority filter; policy accept;", answers,
        *jumps["Egress"], "  }", "}", ""])


class Enforcer:
    """A context in which the cluster's NetworkPolicies hold."""

    def __init__(self, kube):
        self.kube = kube
        self.applied = self.error = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self.refresh()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join(timeout=60)
        subprocess.run(["nft", "delete", "table", "ip", TABLE], capture_output=True)
        if self.error is not None:
            raise self.error

    def refresh(self):
        wanted = ruleset(self.kube.items("/apis/networking.k8s.io/v1/networkpolicies"),
                         self.kube.items("/api/v1/pods"), self.kube.items("/api/v1/namespaces"))
        if wanted != self.applied:
            done = subprocess.run(["nft", "-f", "-"], input=wanted, capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"nft: {done.stderr.strip()}\n{wanted}")
            self.applied = wanted

    def _run(self):
        while not self.stopping.wait(EVERY_SECONDS):
            try:
                self.refresh()
            except (OSError, http.client.HTTPException):
                continue  # the API server is busy; the rules of a second ago hold
            except RuntimeError as error:
                self.error = error
