"""`./dev demo --observe`: a Prometheus beside the demo's cluster, a little load, and what to open."""

import contextlib
import itertools
import pathlib
import re
import tempfile
import threading

import grpc

import prometheus
import stubs

# Not 9090: Debian's package starts a service of its own there.
DEFAULT_PORT = 30090
INTERVAL_S = 1
# A line of the table that `baton up` prints when it is ready; the last column is the metrics address.
PROCESS = re.compile(r"^\s+(\S+)\s+(router|prefill|decode)\s.*\s(\S+:\d+)$", re.MULTILINE)


def targets(log):
    """{process: "host:port"} of all metrics endpoints, from the log of `baton up`."""
    return {name: address for name, _, address in PROCESS.findall(log[log.rindex("cluster ready:"):])}


class Load:
    """Short completions one after the other, so that dashboards have something to show."""

    def __init__(self, target, prompt):
        self.target, self.prompt = target, prompt
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()

    def _run(self):
        with grpc.insecure_channel(self.target) as channel:
            inference = stubs.inference_grpc.InferenceStub(channel)
            for number in itertools.count():
                length = 200 * (1 + number % 8)
                sampling = stubs.common.SamplingParams(max_tokens=40, ignore_eos=True, seed=number)
                request = stubs.inference.GenerateRequest(text=self.prompt[:length], sampling=sampling)
                call = inference.Generate(request, timeout=60)
                with contextlib.suppress(grpc.RpcError):  # A cluster that is being tried out may refuse.
                    for _ in call:
                        if self.ended.is_set():
                            call.cancel()
                if self.ended.wait(1):
                    return


@contextlib.contextmanager
def observing(log, target, prompt, port):
    """Prometheus and load while the caller's block runs; yields what to tell the user."""
    found = targets(log)
    with tempfile.TemporaryDirectory(prefix="baton-observe-") as directory:
        with prometheus.Prometheus(pathlib.Path(directory), found.values(), port, INTERVAL_S) as server:
            server.wait_ready()
            with Load(target, prompt):
                yield f"""
Prometheus scrapes {len(found)} processes ({', '.join(found)}). Open:

  {server.dashboard_url('baton-overview')}
                                          the dashboards of deploy/grafana
  {server.url}/classic/alerts   alerts, as deploy/prometheus has them
  {server.url}/classic/graph    any query; docs/metrics.md lists the metrics

A short completion every second keeps them moving.
"""
