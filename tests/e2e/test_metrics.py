"""A live cluster's /metrics against docs/metrics.md, both ways, and promtool's opinion of them."""

import re
import shutil
import subprocess

import pytest

import cluster as clusters
from client import Client

ROW = re.compile(r"^- `(?P<name>baton_[a-z0-9_]+)` \((?P<type>\w+)(, \w+)?; (?P<roles>[a-z, ]+)[;)]")
ALL = "router,prefill,decode"


def documented():
    """{name: (type, roles)} from the generated page, which a unit test compares with the table; without GPUs'."""
    lines = (clusters.ROOT / "docs/metrics.md").read_text().splitlines()
    rows = filter(None, map(ROW.match, [line for line in lines if "`device`" not in line]))
    return {row["name"]: (row["type"], row["roles"].replace("all", ALL).replace(" ", "").split(",")) for row in rows}


def families(text):
    return {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE ")}


@pytest.fixture(scope="module")
def scrapes(small_cluster):
    with Client(small_cluster.target) as client:
        assert client.greedy(list(range(200)), 4).error is None
    ports = {"router": small_cluster.http_port, **small_cluster.metrics_ports}
    return {name: small_cluster.get("/metrics", port)[1] for name, port in ports.items()}


def test_live_metrics_are_the_documented_ones(scrapes):
    table = documented()
    assert len(table) > 20
    for process, text in scrapes.items():
        role = process.split("-")[0]
        live = families(text)
        wanted = {name: kind for name, (kind, roles) in table.items() if role in roles}
        assert set(live) == set(wanted), process
        for name, kind in wanted.items():
            assert live[name] == kind, f"{process} {name}"


def test_work_shows_in_the_numbers(small_cluster, scrapes):
    assert small_cluster.metric("router", "baton_requests_total") >= 1
    assert small_cluster.metric("prefill-0-0", "baton_kv_transfer_bytes_total") > 0
    assert small_cluster.metric("decode-0", "baton_generation_tokens_total") > 0


def test_what_alerts_take_for_failures_begins_at_zero(scrapes):
    """A series that begins with the first failures has no rate."""
    rules = (clusters.ROOT / "deploy/prometheus/rules/baton.recording.yaml").read_text()
    lines = [line for line in scrapes["router"].splitlines() if line.startswith("baton_requests_total{")]
    for outcome in re.search(r'outcome=~"([a-z_|]+)"', rules).group(1).split("|"):
        for endpoint in ("generate", "completions", "chat_completions", "messages", "responses"):
            labels = {f'endpoint="{endpoint}"', f'outcome="{outcome}"'}
            found = [line for line in lines if labels <= set(re.findall(r'\w+="[^"]*"', line))]
            assert len(found) == 1 and found[0].endswith(" 0"), (labels, found)


def test_chunks_are_counted_by_request(tiny_model, tmp_path):
    chunks = ["--chunk-policy", "fixed", "--chunked-prefill-size", 64]
    with clusters.Cluster(tiny_model, tmp_path, stages=2, flags=["--page-size", 16], prefill_flags=chunks) as cluster, \
            Client(cluster.target) as client:
        for tokens in (200, 64):
            assert client.greedy(list(range(tokens)), 1).error is None
        names = ("baton_request_chunks_count", "baton_request_chunks_sum", "baton_chunk_tokens_count")
        assert [cluster.metric("prefill-0-0", name) for name in names] == [2, 5, 5]


def test_promtool_accepts_them(scrapes):
    promtool = shutil.which("promtool")
    assert promtool, "promtool comes with Debian's package prometheus (third_party/packages.txt)"
    for process, text in scrapes.items():
        check = subprocess.run([promtool, "check", "metrics"], input=text, text=True, capture_output=True)
        assert check.returncode == 0, f"{process}: {check.stdout}{check.stderr}"
