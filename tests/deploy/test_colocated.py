"""The chart's mode: colocated: chains that also decode, and nothing of decode services."""

import pytest

from kit import Objects, chart, render_chart

CHAIN_ROLES = ("router", "prefill")
EVERYTHING = {
    "mode": "colocated", "networkPolicy": {"enabled": True}, "discovery": {"mode": "kubernetes"},
    "cluster": {"tls": {"certManager": {"enabled": True, "issuerRef": {"name": "ca"}}}},
    "monitoring": {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
}


@pytest.fixture(scope="module")
def colocated():
    return chart({"mode": "colocated"})


def test_a_chain_decodes_and_has_a_name_of_its_own(colocated):
    options = colocated.options("prefill")
    assert options["disaggregation_mode"] == "null"
    # Pods of both modes are there while an upgrade rolls, and are different chains.
    assert options["chain_id"] != chart().options("prefill")["chain_id"]
    assert options["pp_size"] == 2 and colocated.workload("prefill")["spec"]["replicas"] == 2


@pytest.mark.parametrize("values", [{"mode": "colocated"}, EVERYTHING], ids=["defaults", "everything"])
def test_nothing_is_decodes(values):
    rendered = chart(values)
    assert not [one["metadata"]["name"] for one in rendered.all if one["metadata"]["name"].startswith("baton-decode")]
    assert {role for role in CHAIN_ROLES if rendered.workload(role)} == set(CHAIN_ROLES)


def test_no_rule_lets_decode_in():
    for policy in chart(EVERYTHING).of("NetworkPolicy"):
        assert "decode" not in str(policy["spec"]), policy["metadata"]["name"]


def test_routers_look_for_chains_alone():
    assert chart(EVERYTHING).options("router")["service_discovery_selector"].endswith("component in (prefill)")


def test_options_are_those_of_the_mode():
    given = {"max_running_requests": 8, "max_prefill_requests": 4, "page_size": 32}
    colocated, apart = (chart({"mode": mode, "options": given}).options("prefill")
                        for mode in ("colocated", "disaggregated"))
    assert colocated["max_running_requests"] == 8 and "max_prefill_requests" not in colocated
    assert apart["max_prefill_requests"] == 4 and "max_running_requests" not in apart
    assert colocated["page_size"] == apart["page_size"] == 32


def test_chains_scale_as_groups():
    rendered = Objects(render_chart({"mode": "colocated", "workload": {"kind": "LeaderWorkerSet"},
                                     "prefill": {"autoscaling": {"enabled": True}}}))
    assert rendered.has("LeaderWorkerSet", "baton-prefill") and not rendered.has("LeaderWorkerSet", "baton-decode")
    assert rendered.has("HorizontalPodAutoscaler", "baton-prefill")


def test_two_certificates_are_enough():
    secrets = {"router": "r", "prefill": "p"}
    rendered = chart({"mode": "colocated", "cluster": {"tls": {"existingSecrets": secrets}}})
    assert rendered.options("prefill")["cluster_tls_cert"].startswith("/run/baton-cluster-tls/")
