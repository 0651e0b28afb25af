"""The parts of tests/kubernetes that decide something: what a NetworkPolicy lets pass, what a good answer is."""

import http.server
import json
import pathlib
import shutil
import subprocess
import sys
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "kubernetes"), str(ROOT / "tools" / "dev")]

import kube  # noqa: E402
import load  # noqa: E402
import policy  # noqa: E402
import release  # noqa: E402

ROUTER, DECODE, OTHER = "10.244.0.2", "10.244.0.3", "10.244.0.4"
NAMESPACES = [{"metadata": {"name": "serve", "labels": {"team": "a"}}}, {"metadata": {"name": "else", "labels": {}}}]


def pod(address, namespace="serve", port=30001, **labels):
    return {"metadata": {"name": f"pod-{address}", "namespace": namespace, "labels": labels},
            "spec": {"containers": [{"ports": [{"name": "grpc", "containerPort": port}]}]},
            "status": {"podIP": address, "phase": "Running"}}


PODS = [pod(ROUTER, role="router"), pod(DECODE, role="decode"), pod(OTHER, "else", role="router")]


def decode_policy(**spec):
    return {"metadata": {"name": "decode", "namespace": "serve"},
            "spec": {"podSelector": {"matchLabels": {"role": "decode"}}, **spec}}


def chain(policies, name):
    """Lines of one chain of the rules, or None if there is none."""
    text = policy.ruleset(policies, PODS, NAMESPACES)
    _, found, rest = text.partition(f"  chain {name} {{\n")
    return [line.strip() for line in rest.partition("\n  }")[0].splitlines()] if found else None


INGRESS = "ingress-10-244-0-3"


def test_pod_that_no_policy_selects_stays_open():
    text = policy.ruleset([decode_policy(ingress=[])], PODS, NAMESPACES)
    assert ROUTER not in text and OTHER not in text


def test_policy_without_rules_shuts_its_direction_only():
    assert chain([decode_policy(ingress=[])], INGRESS) == ["counter drop"]
    assert chain([decode_policy(ingress=[])], "egress-10-244-0-3") is None
    assert chain([decode_policy(policyTypes=["Egress"])], "egress-10-244-0-3") == ["counter drop"]


def test_peers_by_label_are_of_the_policys_own_namespace():
    rule = {"from": [{"podSelector": {"matchLabels": {"role": "router"}}}], "ports": [{"port": "grpc"}]}
    assert chain([decode_policy(ingress=[rule])], INGRESS) == [
        f"ip saddr {{ {ROUTER} }} tcp dport 30001 return", "counter drop"]


def test_peers_of_other_namespaces_and_networks():
    rule = {"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"role": "router"}}},
                     {"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.9/32"]}}]}
    assert chain([decode_policy(ingress=[rule])], INGRESS) == [
        f"ip saddr {{ {ROUTER}, {OTHER} }}  return",
        "ip saddr { 192.0.2.0/24 } ip saddr != { 192.0.2.9/32 }  return", "counter drop"]


def test_peers_that_are_nobody_allow_nobody():
    rule = {"from": [{"podSelector": {"matchLabels": {"role": "nobody"}}}]}
    assert chain([decode_policy(ingress=[rule])], INGRESS) == ["counter drop"]


def test_several_policies_allow_what_any_allows():
    allowed = chain([decode_policy(ingress=[{"ports": [{"port": 1}]}]),
                     decode_policy(ingress=[{"ports": [{"port": 2, "endPort": 4, "protocol": "UDP"}]}])], INGRESS)
    assert allowed == ["tcp dport 1 return", "udp dport 2-4 return", "counter drop"]


def test_named_port_of_egress_is_the_peers():
    pods_port = policy.port_matches({"port": "grpc"}, [pod(ROUTER, port=7), pod(OTHER, port=9)])
    assert pods_port == ["tcp dport 7", "tcp dport 9"]


@pytest.mark.parametrize("selector, chosen", [
    ({}, True), ({"matchLabels": {"a": "1"}}, True), ({"matchLabels": {"a": "2"}}, False),
    ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, True),
    ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, False),
    ({"matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["1"]}]}, True),
    ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, True),
    ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, False)])
def test_selectors(selector, chosen):
    assert policy.matches(selector, {"a": "1"}) == chosen


def test_nft_accepts_the_rules():
    if shutil.which("nft", path="/usr/sbin:/sbin:/usr/bin") is None:
        pytest.skip("no nft here")
    rules = policy.ruleset([decode_policy(ingress=[{"ports": [{"port": 2, "endPort": 4}]}], egress=[{}],
                                          policyTypes=["Ingress", "Egress"])], PODS, NAMESPACES)
    checked = subprocess.run(["unshare", "--user", "--map-root-user", "--net", "nft", "-c", "-f", "-"], input=rules,
                             capture_output=True, text=True, check=False)
    if "Operation not permitted" in checked.stderr:
        pytest.skip("no network namespace here")
    assert checked.returncode == 0, checked.stderr


class Server(http.server.BaseHTTPRequestHandler):
    """Answers with what its path names."""
    BODIES = {"good": [{"choices": [{"text": "a b"}]}, {"choices": [{"text": " c"}]}, "[DONE]"],
              "cut": [{"choices": [{"text": "a"}]}],
              "error": [{"choices": [{"text": "a"}]}, {"error": {"message": "decode went away"}}, "[DONE]"]}
    body = "good"

    def do_POST(self):
        self.send_response(503 if Server.body == "refused" else 200)
        self.end_headers()
        for event in Server.BODIES.get(Server.body, []):
            data = event if isinstance(event, str) else json.dumps(event)
            self.wfile.write(f"data: {data}\n\n".encode())

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address
        server.shutdown()


def test_load_takes_whole_answers_only(address):
    Server.body = "good"
    assert load.complete(address, "x", 3) == "a b c"
    for body, words in (("cut", r"without \[DONE\]"), ("error", "decode went away"), ("refused", "HTTP 503")):
        Server.body = body
        with pytest.raises(load.BadAnswer, match=words):
            load.complete(address, "x", 3)


def test_load_counts_another_text_as_a_failure(address):
    Server.body = "good"
    with load.Load(address, {"x": "a b c", "y": "other"}, 3, streams=2) as running:
        running.wait_answers(2, seconds=30)
    assert running.failures and all("another text" in failure.what for failure in running.failures)


def test_values_merge_deeply_and_leave_their_base():
    chosen = release.values(decode={"replicas": 3}, prefill={"parallelism": {"layerPartition": "1,2"}})
    assert chosen["decode"]["replicas"] == 3 and chosen["decode"]["resources"] == release.SMALL
    assert chosen["prefill"]["parallelism"] == {"pp": 2, "layerPartition": "1,2"}
    assert release.values()["decode"]["replicas"] == 2


def test_pod_is_described_in_one_line():
    described = kube.describe({"metadata": {}, "status": {"phase": "Running", "conditions": [
        {"type": "Ready", "status": "False"}], "containerStatuses": [
            {"name": "decode", "restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
             "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}}]}})
    assert described == "Running; not ready; decode: restarts 2, CrashLoopBackOff, last ended with 1 Error"
