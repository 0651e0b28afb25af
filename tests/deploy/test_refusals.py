"""Values that are refused, and the words in which they are: both values of a contradiction are named."""

import pytest

from kit import CHART, Refused, render_chart, run

# (values, what the message must contain)
SCHEMA = {
    "unknown at the top": ({"optoins": {}}, ["'optoins' not allowed"]),
    "unknown below a role": ({"prefill": {"replica": 2}}, ["/prefill", "'replica' not allowed"]),
    "unknown option": ({"options": {"page_sise": 64}}, ["/options", "'page_sise' not allowed"]),
    "option of another role": ({"router": {"options": {"page_size": 64}}}, ["/router/options", "'page_size'"]),
    "option that the chart derives": ({"prefill": {"options": {"pp_size": 2}}}, ["/prefill/options", "'pp_size'"]),
    "option out of range": ({"options": {"kv_cache_tokens": 1}}, ["/options/kv_cache_tokens", "128"]),
    "option that is no choice": ({"options": {"page_size": 48}}, ["/options/page_size", "16, 32, 64, 128"]),
    "option of the wrong type": ({"options": {"max_running_requests": "many"}},
                                 ["max_running_requests", "want integer"]),
    "YAML's off is no text": ({"options": {"log_requests": False}}, ["/options/log_requests"]),
    "fraction above one": ({"options": {"mem_fraction_static": 1.5}}, ["/options/mem_fraction_static"]),
    "text for a number": ({"prefill": {"replicas": "two"}}, ["/prefill/replicas", "want integer"]),
    "no such mode": ({"mode": "null"}, ["/mode", "colocated"]),
    "no such workload": ({"workload": {"kind": "Deployment"}}, ["/workload/kind", "StatefulSet"]),
    "no such model source": ({"model": {"source": "s3"}}, ["/model/source", "pvc"]),
    "more stages than there may be": ({"prefill": {"parallelism": {"pp": 65}}}, ["/prefill/parallelism/pp", "64"]),
    "more stages of a decode": ({"decode": {"parallelism": {"pp": 65}}}, ["/decode/parallelism/pp", "64"]),
    "no partition": ({"prefill": {"parallelism": {"layerPartition": "3;3"}}}, ["/prefill/parallelism/layerPartition"]),
    "times of a decode": ({"decode": {"parallelism": {"layerPartition": "auto"}}},
                          ["/decode/parallelism/layerPartition"]),
    "no digest": ({"image": {"digest": "latest"}}, ["/image/digest"]),
    "no quantity": ({"decode": {"resources": {"limits": {"memory": "4 GB"}}}}, ["/decode/resources/limits/memory"]),
    "no toleration": ({"decode": {"tolerations": [{"keys": "x"}]}}, ["/decode/tolerations/0", "'keys'"]),
    "no affinity": ({"decode": {"affinity": {"nodeAfinity": {}}}}, ["/decode/affinity", "'nodeAfinity'"]),
    "an option as a variable": ({"decode": {"extraEnv": [{"name": "BATON_PAGE_SIZE", "value": "32"}]}},
                                ["/decode/extraEnv/0/name"]),
    "root": ({"security": {"runAsUser": 0}}, ["/security/runAsUser"]),
    "unknown probe field": ({"decode": {"probes": {"startup": {"seconds": 1}}}},
                            ["/decode/probes/startup", "'seconds'"]),
}

ON = {"enabled": True}
COLOCATED = {"mode": "colocated"}
RULES = {
    "options of decode without decode": (COLOCATED | {"decode": {"options": {"kv_cache_tokens": 4096}}},
                                         ["decode.options", "mode: colocated"]),
    "decode that is scaled and is not there": (COLOCATED | {"decode": {"autoscaling": ON}},
                                               ["decode.autoscaling.enabled: true", "mode: colocated"]),
    "a set of both without one": (COLOCATED | {"workload": {"kind": "DisaggregatedSet"}},
                                  ["workload.kind: DisaggregatedSet", "mode: colocated", "LeaderWorkerSet"]),
    "a bound of the other mode": (COLOCATED | {"prefill": {"options": {"max_prefill_requests": 4}}},
                                  ["prefill.options.max_prefill_requests", "mode: colocated"]),
    "time between tokens of prefill": ({"prefill": {"options": {"target_itl_ms": 50}}},
                                       ["prefill.options.target_itl_ms", "mode: disaggregated"]),
    "a GPU that is not reserved": ({"decode": {"options": {"executor": "torch", "device": "cuda"}}},
                                   ["decode: options.device: cuda", "nvidia.com/gpu"]),
    "page sizes differ": ({"prefill": {"options": {"page_size": 32}}},
                          ["prefill.options.page_size: 32", "decode.options.page_size: 64"]),
    "chunk is no multiple of a page": ({"prefill": {"options": {"chunked_prefill_size": 100}}},
                                       ["chunked_prefill_size: 100", "page_size: 64"]),
    "cap below a page": ({"prefill": {"options": {"max_prefill_tokens": 16}}},
                         ["max_prefill_tokens: 16", "page_size: 64"]),
    "grace below drain": ({"drain": {"timeoutSeconds": 300}, "decode": {"terminationGracePeriodSeconds": 60}},
                          ["decode.terminationGracePeriodSeconds: 60", "drain.timeoutSeconds: 300"]),
    "grace below the router's settling": ({"router": {"terminationGracePeriodSeconds": 122}},
                                          ["router.terminationGracePeriodSeconds: 122", "at least 135"]),
    "partition of other stages of decode": ({"decode": {"parallelism": {"pp": 2, "layerPartition": "2,2,2"}}},
                                            ['decode.parallelism.layerPartition: "2,2,2"', "3 stages", "pp is 2"]),
    "partition of other layers of decode": (
        {"decode": {"parallelism": {"pp": 2, "layerPartition": "3,4"}}, "model": {"layers": 6}},
        ['decode.parallelism.layerPartition: "3,4" shares out 7', "model.layers is 6"]),
    "more stages than layers": ({"prefill": {"parallelism": {"pp": 9}}, "model": {"layers": 6}},
                                ["prefill.parallelism.pp: 9", "model.layers: 6"]),
    "more stages of decode than layers": ({"decode": {"parallelism": {"pp": 7}}, "model": {"layers": 6}},
                                          ["decode.parallelism.pp: 7", "model.layers: 6"]),
    "scaling of a decode's single stages": (
        {"decode": {"parallelism": {"pp": 2}, "autoscaling": {"enabled": True}}},
        ["decode.autoscaling.enabled", "decode.parallelism.pp is 2"]),
    "partition of other stages": ({"prefill": {"parallelism": {"layerPartition": "2,2,2"}}},
                                  ['layerPartition: "2,2,2"', "3 stages", "pp is 2"]),
    "partition of other layers": ({"prefill": {"parallelism": {"layerPartition": "3,4"}}, "model": {"layers": 6}},
                                  ['"3,4" shares out 7', "model.layers is 6"]),
    "layers by times that nobody says": ({"prefill": {"parallelism": {"layerPartition": "auto"}}},
                                         ["layerPartition: auto", "set prefill.chunkProfile"]),
    "times that nobody uses": ({"prefill": {"chunkProfile": "{}"}},
                               ["prefill.chunkProfile", "layerPartition: auto", "prefill.options.chunk_profile"]),
    "two files of times": ({"prefill": {"chunkProfile": "{}", "parallelism": {"layerPartition": "auto"},
                                        "options": {"chunk_profile": "/p/own.json"}}},
                           ["prefill.chunkProfile", "prefill.options.chunk_profile: /p/own.json"]),
    "ranks that share no heads": ({"prefill": {"parallelism": {"tp": 2}}, "decode": {"parallelism": {"tp": 3}}},
                                  ["prefill.parallelism.tp: 2", "decode.parallelism.tp: 3", "neither divides"]),
    "ranks of another executor of decode": (
        {"decode": {"parallelism": {"tp": 2}, "options": {"executor": "torch"}}},
        ["decode.parallelism.tp: 2", "decode.options.executor: native", "torch"]),
    "scaling of single ranks": (
        {"decode": {"parallelism": {"tp": 2}, "autoscaling": {"enabled": True}}},
        ["decode.autoscaling.enabled", "decode.parallelism.tp is 2"]),
    "ranks of another executor": ({"prefill": {"parallelism": {"tp": 2}, "options": {"executor": "torch"}}},
                                  ["prefill.parallelism.tp: 2", "executor: native", "torch"]),
    "ranks behind ports": ({"prefill": {"parallelism": {"tp": 2}}, "networkPolicy": {"enabled": True},
                            "transfer": {"portRange": "20000-20100"}}, ["prefill.parallelism.tp: 2", "20000-20100"]),
    "lease below two heartbeats": ({"options": {"lease_ms": 900}}, ["lease_ms: 900", "heartbeat_interval_ms: 500"]),
    "a worker's heartbeat against the router's lease": (
        {"decode": {"options": {"heartbeat_interval_ms": 1500, "lease_ms": 9000}}},
        ["router.options.lease_ms: 2000", "decode.options.heartbeat_interval_ms: 1500"]),
    "bodies below one request": ({"router": {"options": {"max_http_body_bytes_in_flight": 2048}}},
                                 ["max_http_body_bytes_in_flight: 2048", "max_request_bytes: 16777216"]),
    "a claim that is not named": ({"model": {"source": "pvc"}}, ["model.source: pvc", "model.pvc.claimName"]),
    "a host path that is not named": ({"model": {"source": "hostPath"}}, ["model.hostPath.path"]),
    "an init container without image": ({"model": {"source": "initContainer"}}, ["model.initContainer.image"]),
    "a model outside of its volume": (
        {"model": {"source": "pvc", "pvc": {"claimName": "m"}, "path": "/data/m"}},
        ["model.path: /data/m", "model.mountPath: /models"]),
    "a source that is not read": ({"model": {"pvc": {"claimName": "m"}}},
                                  ["model.pvc.claimName: m", "model.source: image"]),
    "shared memory between pods": ({"transfer": {"backend": "shm"}}, ["transfer.backend: shm", "StatefulSet"]),
    "RDMA without RDMA": ({"prefill": {"rdma": ON}, "decode": {"rdma": ON}, "transfer": {"backend": "tcp"}},
                          ["prefill.rdma.enabled: true", "transfer.backend: tcp"]),
    "RDMA on one side": ({"prefill": {"rdma": ON}}, ["prefill.rdma.enabled: true", "decode.rdma.enabled: false"]),
    "a range that is none": ({"transfer": {"portRange": "40000-39000"}}, ["transfer.portRange: 40000-39000"]),
    "scaling single stages": ({"prefill": {"autoscaling": ON}},
                              ["prefill.autoscaling.enabled", "prefill.parallelism.pp is 2", "LeaderWorkerSet"]),
    "fewest above most": ({"decode": {"autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 2}}},
                          ["minReplicas: 5", "maxReplicas: 2"]),
    "KEDA without Prometheus": ({"decode": {"autoscaling": {"enabled": True, "kind": "KEDA"}}},
                                ["decode.autoscaling.kind: KEDA", "keda.serverAddress"]),
    "HPA without a request": ({"decode": {"autoscaling": ON, "resources": {"requests": {"cpu": None}}}},
                              ["decode.autoscaling.kind: HPA", "decode.resources.requests.cpu"]),
    "nothing to scale": ({"workload": {"kind": "DisaggregatedSet"}, "decode": {"autoscaling": ON}},
                         ["decode.autoscaling.enabled", "DisaggregatedSet"]),
    "a budget of nothing": ({"decode": {"pdb": {"maxUnavailable": 0}}}, ["decode.pdb.maxUnavailable: 0"]),
    "an ingress without hosts": ({"router": {"ingress": ON}}, ["router.ingress.hosts"]),
    "a gateway without parents": ({"router": {"gateway": ON}}, ["router.gateway.parentRefs"]),
    "a node port of a cluster's address": ({"router": {"service": {"httpNodePort": 30080}}},
                                           ["httpNodePort: 30080", "ClusterIP"]),
    "a policy past the host's network": ({"decode": {"hostNetwork": True}, "networkPolicy": ON},
                                         ["decode.hostNetwork: true", "networkPolicy.enabled: true"]),
    "half a DisaggregatedSet": ({"workload": {"kind": "DisaggregatedSet"}, "decode": {"replicas": 0}},
                                ["prefill.replicas: 1", "decode.replicas: 0"]),
    "no update can begin": ({"workload": {"kind": "LeaderWorkerSet"}, "decode": {"rollout": {"maxSurge": 0}}},
                            ["decode.rollout.maxSurge: 0", "decode.rollout.maxUnavailable: 0"]),
    "more requested than allowed": ({"decode": {"resources": {"requests": {"memory": "2Gi"}}}},
                                    ["requests.memory: 2Gi", "limits.memory: 1Gi"]),
    "a port of two": ({"network": {"ports": {"cluster": 30001}}}, ["network.ports.grpc", "network.ports.cluster"]),
    "certificates of one role": ({"cluster": {"tls": {"existingSecrets": {"router": "r"}}}},
                                 ["cluster.tls.existingSecrets", "only router"]),
    "certificates of two makers": ({"cluster": {"tls": {
        "existingSecrets": {"router": "r", "prefill": "p", "decode": "d"},
        "certManager": {"enabled": True, "issuerRef": {"name": "i"}}}}},
        ["cluster.tls.existingSecrets", "cluster.tls.certManager.enabled"]),
    "certificates of no issuer": ({"cluster": {"tls": {"certManager": ON}}},
                                  ["cluster.tls.certManager.issuerRef.name"]),
    "ports that collide": ({"network": {"ports": {"metrics": 30001}}}, ["network.ports.grpc", "network.ports.metrics"]),
}


def refusal(values, **more):
    with pytest.raises(Refused) as refused:
        render_chart(values, **more)
    return str(refused.value)


@pytest.mark.parametrize("values, words", SCHEMA.values(), ids=SCHEMA)
def test_the_schema_refuses(values, words):
    message = refusal(values)
    assert "values don't meet the specifications of the schema" in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("values, words", RULES.values(), ids=RULES)
def test_a_rule_names_both_values(values, words):
    message = refusal(values)
    assert "values contradict each other" in message
    for word in words:
        assert word in message


def test_a_number_that_may_be_auto_takes_the_word_and_no_other():
    render_chart({"prefill": {"options": {"chunked_prefill_size": "auto"}}})
    assert "chunked_prefill_size" in refusal({"prefill": {"options": {"chunked_prefill_size": "large"}}})


def test_every_broken_rule_is_told_at_once():
    message = refusal({"prefill": {"options": {"page_size": 32}}, "model": {"source": "pvc"}})
    assert message.count("\n  - ") == 2


def test_an_oci_volume_needs_a_cluster_that_has_them():
    values = {"model": {"source": "ociVolume", "ociVolume": {"reference": "m:1"}}}
    assert "Kubernetes 1.33" in refusal(values, version="1.32.0")
    render_chart(values, version="1.33.0")


def test_an_old_cluster_is_refused():
    assert "kubeVersion: >=1.29.0-0" in refusal({}, version="1.28.0")


def test_helm_lint_has_nothing_to_say(helm):
    assert "0 chart(s) failed" in run(helm, "lint", "--strict", CHART, "--kube-version", "1.34.0")
