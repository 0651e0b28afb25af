"""SGLang's own launch lines on every kind of process: taken whole, each flag honoured or explained in one line."""

import subprocess

import pytest

import cluster as clusters
from client import Client

# The options of SGLang's guide to pipeline parallelism, but those that say what a process is part of. A bound on the
# KV cache makes the share of the memory a small one.
COMMON = ("--trust-remote-code --disable-radix-cache --mem-fraction-static 0.8 --attention-backend fa3 "
          "--host 127.0.0.1 --watchdog-timeout 3600 --max-running-requests 128 --chunked-prefill-size 4096 "
          "--enable-dynamic-chunking --kv-cache-tokens 4096").split()
NODES = "--nnodes 4 --node-rank 0 --tp 8 --pp-size 4 --port 30000 --dist-init-addr 127.0.0.1".split()
EXPLAINED = ("--trust-remote-code: no code of a model is ever run", "--attention-backend=fa3: the fastest kernels",
             "--watchdog-timeout=3600: /health fails")
UNREAD = "set and not read by Baton: SGLANG_PP_COMM_OVERLAP, VLLM_USE_V1"
ENVIRONMENT = {"VLLM_USE_V1": "1", "SGLANG_PP_COMM_OVERLAP": "1", "SGLANG_PP_LAYER_PARTITION": "2,4"}


@pytest.fixture(scope="module")
def cluster(tiny_model, tmp_path_factory):
    with clusters.Cluster(tiny_model, tmp_path_factory.mktemp("logs"), flags=[*COMMON, "--port", "30000"],
                          router_flags=COMMON, environment=ENVIRONMENT) as running:
        yield running


def test_every_process_starts_and_explains_each_flag_once(cluster):
    for name, process in cluster.processes.items():
        log = process.log()
        for line in (*EXPLAINED, UNREAD):
            assert log.count(line) == 1, f"{line!r} in the log of {name}:\n{log}"
        assert log.count("--port: nothing for") == (name != "router"), log
        assert ("--max-running-requests: nothing for" in log) == (not name.startswith("decode")), log
    with Client(cluster.target) as client:
        assert len(client.generate("hello", max_tokens=4, ignore_eos=True).tokens) == 4


def test_sglangs_variable_shares_out_the_layers(cluster):
    for stage, layers in (("prefill-0-0", "[0, 2)"), ("prefill-0-1", "[2, 6)")):
        cluster.processes[stage].wait_log(f"layers {layers} of 6")


def run(command, model, *flags):
    return subprocess.run(list(map(str, [clusters.BATON, command, "--model-path", model, *flags])),
                          capture_output=True, text=True, timeout=60 * clusters.PATIENCE, check=False)


@pytest.mark.parametrize("mode", [[], ["--disaggregation-mode", "prefill"], ["--disaggregation-mode", "decode"]])
def test_validate_takes_the_whole_line(tiny_model, mode):
    done = run("validate", tiny_model, *mode, *COMMON, *NODES, "--tp", 2, "--pp-size", 2, "--nnodes", 2)
    assert done.returncode in (0, 1), done.stderr  # 1: this machine is too small.
    for line in EXPLAINED:
        assert done.stdout.count(line) == 1, done.stdout
    assert ("--nnodes: nothing for up" in done.stdout) == (not mode), done.stdout


@pytest.mark.parametrize("command", ["router", "worker", "up", "validate"])
@pytest.mark.parametrize("flags, words", [
    (["--trust-remote-cod"], ["unknown flag", "'--trust-remote-code'"]),
    (["--load-format", "gguf"], ["load-format", "auto or safetensors"]),
    (["--attention-backend"], ["attention-backend", "needs a value"]),
])
def test_what_is_none_is_still_refused(tiny_model, command, flags, words):
    mode = ["--disaggregation-mode", "prefill"] if command == "worker" else []
    done = run(command, tiny_model, *mode, *flags)
    assert done.returncode == 2, done
    for word in words:
        assert word in done.stderr, done.stderr
