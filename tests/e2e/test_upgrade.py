"""What a process that was told to stop still does for its clients."""

import signal

import cluster as clusters
from client import Client


def test_a_router_serves_until_load_balancers_have_looked_away(tiny_model, tmp_path):
    with clusters.Cluster(tiny_model, tmp_path, stages=1, router_flags=["--drain-settle-ms", 3000]) as cluster, \
            Client(cluster.target) as client:
        router = cluster.processes["router"]
        router.signal(signal.SIGTERM)
        clusters.wait_until(lambda: cluster.get("/readiness")[0] == 503, 10, "it to be unready")
        assert cluster.get("/health")[0] == 200
        answer = client.greedy(list(range(40)), 3)
        assert answer.error is None and len(answer.tokens) == 3
        router.popen.wait(20 * clusters.PATIENCE)
        assert router.popen.returncode == 0, router.log()
        assert "drain begins" in router.log() and "drain ends after" in router.log()
