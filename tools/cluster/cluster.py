"""Real clusters of real processes on loopback, for tests and tools: start, wait, kill, restart, scrape.

A Cluster owns its processes and always ends them. Ports are free ones of this machine; logs go to a
directory of the caller and are shown when something fails.
"""

import fcntl
import itertools
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BATON = ROOT / "bazel-bin" / "services" / "baton" / "baton"
# Sanitizers slow everything down: waits stretch, promises about time do not get checked.
SANITIZED = bool(os.environ.get("SANITIZER"))
PATIENCE = 8.0 if SANITIZED else 1.0


class PortClaims:
    """Ports that this process may use, so that no two processes of a user that start clusters at once choose
    the same: a byte's lock for each, in one file, which the kernel takes back when the process ends."""

    def __init__(self):
        self.claimed = set()
        self.file = None

    def claim(self, port):
        if port in self.claimed:
            return False
        if self.file is None:
            path = pathlib.Path(tempfile.gettempdir()) / f"baton-ports-{os.getuid()}.lock"
            self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            return False
        self.claimed.add(port)
        return True


PORT_CLAIMS = PortClaims()


def free_ports(count):
    """Ports that are free now, that no other user of this function has, and below those that the kernel gives
    to others who ask for any (clients, the data plane), so that nobody takes one before its process does. Claimed
    before it is tried: to try a port is to hold it for a moment, and another's process might ask for it in that one."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        first_ephemeral = int(file.read().split()[0])
    ports = []
    while len(ports) < count:
        port = random.randrange(10_000, max(first_ephemeral, 20_000))
        if PORT_CLAIMS.claim(port) and can_bind(port):
            ports.append(port)
    return ports


def can_bind(port):
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_until(predicate, seconds, what):
    """Polls until `predicate()` is true; the deadline is a bound, never a measurement."""
    deadline = time.monotonic() + seconds * PATIENCE
    while time.monotonic() < deadline:
        value = predicate()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds * PATIENCE:.0f} s for {what}")


class Process:
    """One baton process with its arguments, so that it can be started again as it was."""

    def __init__(self, name, arguments, log_dir, environment):
        self.name = name
        self.arguments = [str(BATON), *map(str, arguments)]
        self.log_path = pathlib.Path(log_dir) / f"{name}.log"
        self.environment = environment
        self.popen = None
        self.asked = False  # To stop. Asked twice it would not finish what it has begun.

    def start(self):
        self.asked = False
        with open(self.log_path, "ab") as log:
            self.popen = subprocess.Popen(self.arguments, stdout=log, stderr=log, env=self.environment,
                                          stdin=subprocess.DEVNULL, start_new_session=True)

    def alive(self):
        return self.popen is not None and self.popen.poll() is None

    def signal(self, number):
        self.popen.send_signal(number)

    def sockets(self):
        """How many it has open: what it listens on, and its connections."""
        count = 0
        for descriptor in pathlib.Path(f"/proc/{self.popen.pid}/fd").iterdir():
            try:
                count += os.readlink(descriptor).startswith("socket:")
            except FileNotFoundError:
                pass  # Closed since.
        return count

    def ask_to_stop(self):
        if self.alive() and not self.asked:
            self.asked = True
            self.popen.send_signal(signal.SIGCONT)
            self.popen.send_signal(signal.SIGTERM)

    def kill(self):
        if self.alive():
            self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()

    def stop(self, seconds=15):
        """Asks to stop, then insists; returns the exit code (negative: a signal)."""
        if self.popen is None:
            return None
        if self.alive():
            self.ask_to_stop()
            try:
                self.popen.wait(seconds * PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.popen.returncode

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def wait_log(self, text, seconds=30):
        """A living process writes its log soon after what it tells of, not before."""
        wait_until(lambda: text in self.log(), seconds, f"{text!r} in the log of {self.name}")


class Cluster:
    """A router, `chains` chains of `stages` prefill stages, each of `ranks` processes, `decodes` decode
    services, each of `decode_stages` stages of `decode_ranks` processes, and `colocated` chains that also decode,
    of as many stages and ranks as the chains.

    `flags` go to every worker. `tls`: the context of HTTPS clients, if the router's flags ask for HTTPS."""

    def __init__(self, model, log_dir, stages=2, chains=1, decodes=1, flags=(), router_flags=(),
                 prefill_flags=(), decode_flags=(), partition=None, environment=None, tls=None, ranks=1,
                 decode_ranks=1, colocated=0, colocated_flags=(), decode_stages=1):
        self.model, self.stages, self.chains, self.decodes = model, stages, chains, decodes
        self.colocated = colocated
        self.log_dir = pathlib.Path(log_dir)
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self.tls = tls
        self.environment = dict(os.environ, **(environment or {}))
        ports = free_ports(3 + (chains + colocated) * stages * ranks + decodes * decode_stages * decode_ranks)
        self.http_port, self.grpc_port, self.cluster_port = ports[:3]
        self.metrics_ports = {}
        self.processes = {}
        common = ["--model-path", model]
        common += ["--drain-timeout-ms", 5000]  # Of what a failed test leaves behind.
        self._add("router", ["router", *common, "--port", self.http_port, "--grpc-port", self.grpc_port,
                             "--cluster-port", self.cluster_port, *router_flags])
        worker = ["worker", *common, *flags, "--threads", 1, "--router-address", self.cluster_target]
        next_port = iter(ports[3:])
        split = ["--pp-layer-partition", partition] if partition else []
        kinds = [("prefill", "chain", "prefill", chains, prefill_flags),
                 ("colocated", "colocated", "null", colocated, colocated_flags)]
        for kind, chain_name, mode, count, own in kinds:
            for chain, stage, rank in itertools.product(range(count), range(stages), range(ranks)):
                name = f"{kind}-{chain}-{stage}" + (f"-{rank}" if ranks > 1 else "")
                self.metrics_ports[name] = next(next_port)
                place = ["--tp-size", ranks, "--tp-rank", rank] if ranks > 1 else []
                self._add(name, [*worker, "--disaggregation-mode", mode, "--pp-size", stages,
                                 "--pp-rank", stage, *place, "--chain-id", f"{chain_name}-{chain}",
                                 "--instance-id", name, "--metrics-port", self.metrics_ports[name],
                                 "--chunk-sweep-ms", 0, *split, *own])
        self._decode = [*worker, "--disaggregation-mode", "decode", *decode_flags]
        for decode, stage, rank in itertools.product(range(decodes), range(decode_stages), range(decode_ranks)):
            name, place = f"decode-{decode}", ["--decode-id", decode]
            if decode_stages > 1:
                name += f"-{stage}"
                place += ["--pp-size", decode_stages, "--pp-rank", stage]
            if decode_ranks > 1:
                name += f"-{rank}"
                place += ["--tp-size", decode_ranks, "--tp-rank", rank]
            self.add_decode(name, next(next_port), *place)

    def add_decode(self, name, port=None, *place):
        """One more decode service, or a stage or rank of one, not started yet."""
        self.metrics_ports[name] = port or free_ports(1)[0]
        self._add(name, [*self._decode, *place, "--instance-id", name, "--metrics-port", self.metrics_ports[name]])
        return self.processes[name]

    def _add(self, name, arguments):
        self.processes[name] = Process(name, arguments, self.log_dir, self.environment)

    def __enter__(self):
        for process in self.processes.values():
            process.start()
        try:
            self.wait_ready()
        except BaseException:
            self.__exit__(None, None, None)
            print(self.logs())
            raise
        return self

    def __exit__(self, kind, value, trace):
        asked = [process for process in self.processes.values() if process.alive()]
        for process in asked:
            process.ask_to_stop()
        for process in self.processes.values():
            process.stop()
        crashed = {process.name: process.popen.returncode for process in asked if process.popen.returncode}
        if kind is not None or crashed:
            print(self.logs())
        assert kind is not None or not crashed, f"ended with other codes than 0: {crashed}"

    def logs(self, lines=40):
        parts = []
        for process in self.processes.values():
            tail = "\n".join(process.log().splitlines()[-lines:])
            parts.append(f"----- {process.name} -----\n{tail}")
        return "\n".join(parts)

    @property
    def url(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.http_port}"

    @property
    def target(self):
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def cluster_target(self):
        """Where workers register, and drains are asked for."""
        return f"127.0.0.1:{self.cluster_port}"

    def get(self, path, port=None, timeout=5):
        """(status, body) of a GET; (0, reason) if nobody answers."""
        try:
            url = (f"http://127.0.0.1:{port}" if port else self.url) + path
            with urllib.request.urlopen(url, timeout=timeout, context=self.tls) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (urllib.error.URLError, OSError) as error:
            return 0, str(error)

    def post(self, path, body, timeout=60, headers=None):
        """(status, parsed or raw body) of a JSON POST."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method="POST",
                                         headers={"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=timeout * PATIENCE, context=self.tls) as reply:
                status, raw = reply.status, reply.read()
        except urllib.error.HTTPError as error:
            status, raw = error.code, error.read()
        try:
            return status, json.loads(raw)
        except ValueError:
            return status, raw.decode(errors="replace")

    def wait_ready(self, seconds=60):
        """Until every chain can serve, by itself or with every decode: the router is ready before, since requests
        wait. A colocated chain counts as a pair."""
        def ready():
            for process in self.processes.values():
                assert process.popen is None or process.alive(), f"{process.name} ended:\n{process.log()}"
            return (self.get("/readiness")[0] == 200
                    and self.metric("router", "baton_ready_pairs") == self.chains * self.decodes + self.colocated)
        wait_until(ready, seconds, "the cluster to be ready")

    def idle(self):
        """Every page of the workers that live is free, and none is in quarantine."""
        alive = [name for name in self.metrics_ports if self.processes[name].alive()]
        decodes = [name for name in alive if name.startswith("decode")]
        return (all(self.metric(name, "baton_kv_pages_used") == 0 for name in alive)
                and all(self.metric(name, "baton_kv_pages_quarantined") == 0 for name in decodes))

    def metric(self, process, name, **labels):
        """Sum of a metric's samples with these labels on one process."""
        port = None if process == "router" else self.metrics_ports[process]
        status, text = self.get("/metrics", port)
        assert status == 200, text
        total, found = 0.0, False
        for line in text.splitlines():
            if line.startswith("#") or not line.startswith(name):
                continue
            series, value = line.rsplit(" ", 1)
            if series.split("{")[0] != name or any(f'{k}="{v}"' not in series for k, v in labels.items()):
                continue
            total, found = total + float(value), True
        assert found, f"{process} has no metric {name} {labels}"
        return total


def make_model(directory, family="qwen3", layers=12, hidden=64, **options):
    """A random checkpoint with a byte-level tokenizer; the same seed gives the same weights."""
    values = {"family": family, "layers": layers, "hidden-size": hidden, "heads": 4, "kv-heads": 2,
              "head-dim": 16, "intermediate-size": 128, "vocab-size": 320, "max-position": 16384,
              "dtype": "float32", "seed": 1, **{k.replace("_", "-"): v for k, v in options.items()}}
    arguments = [str(BATON), "model", "make", "--out", str(directory)]
    for key, value in values.items():
        arguments.append(f"--{key}={value}")
    subprocess.run(arguments, check=True, capture_output=True, text=True)
    return str(directory)
