"""The memory plan of `baton validate` against real processes: once ready, and after load has touched every
page of the KV pools. Within 10 % for the host and for each process of a made model of some hundred MiB."""

import collections
import subprocess

import pytest

import cluster as clusters
from client import Client

ROUTER_MIB = 4
KV_TOKENS = 8192
PROMPT_TOKENS = 1984  # Four of them, with their continuations, fill a pool to the last page.
FLAGS = ["--kv-cache-tokens", KV_TOKENS]
PREFILL_FLAGS = ["--chunked-prefill-size", 512]
DECODE_FLAGS = ["--max-running-requests", 16]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return clusters.make_model(tmp_path_factory.mktemp("model") / "large", family="llama", layers=8, hidden=512,
                               heads=8, kv_heads=8, head_dim=64, intermediate_size=1408, vocab_size=64000,
                               dtype="bfloat16")


def planned(model, *flags):
    """{process: {column: MiB}} of the table that validate prints."""
    arguments = [clusters.BATON, "validate", "--model-path", model, "--pp-size", 2, "--threads", 1,
                 *FLAGS, *PREFILL_FLAGS, *DECODE_FLAGS, *flags]
    result = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False)
    assert result.returncode == 0 and result.stdout.startswith("OK:"), result.stdout + result.stderr
    lines = iter(result.stdout.splitlines())
    next(line for line in lines if line.startswith("memory "))
    table = {}
    for line in lines:
        name, row = line[:12].strip(), line[12:].replace(", ", ",").split()
        if name == "this host":
            table[name] = float(row[0])
            return table
        columns = ["count", "layers", "weights", "kv", "buffers", "process", "together"]
        table[name] = {column: float(value) for column, value in zip(columns, row) if column != "layers"}
    raise AssertionError(result.stdout)


def mappings(process):
    """(file, private KiB, shared KiB) of each mapping; the file is an inode and a path, None for no file."""
    key, sizes = None, {}
    with open(f"/proc/{process.popen.pid}/smaps", encoding="ascii") as file:
        for line in file:
            words = line.split()
            if words[0].endswith(":"):
                sizes[words[0]] = int(words[1]) if words[1].isdigit() else 0
            else:
                if sizes:
                    yield key, sizes
                key, sizes = (words[4], words[-1]) if words[4] != "0" else None, {}
    yield key, sizes


NAMES = {"router": "router", "prefill-0-0": "prefill 0", "prefill-0-1": "prefill 1", "decode-0": "decode"}
RANK_NAMES = {"router": "router", "prefill-0-0-0": "prefill 0", "prefill-0-0-1": "prefill 0", "decode-0": "decode",
              "prefill-0-1-0": "prefill 1.0", "prefill-0-1-1": "prefill 1.>0"}


def measured(cluster, names=NAMES):
    """The process's part of what is resident, in MiB: what it shares with its own cluster counts in shares. Not the
    kernel's own sum of that (Pss): clusters of other tests that run beside this one would take shares as well."""
    maps = {name: list(mappings(cluster.processes[name])) for name in names}
    sharers = collections.Counter(key for one in maps.values() for key in {key for key, _ in one})

    def part_kib(key, sizes):
        shared = sizes["Shared_Clean:"] + sizes["Shared_Dirty:"]
        return sizes["Private_Clean:"] + sizes["Private_Dirty:"] + shared / (sharers[key] if key else 1)
    parts = {name: sum(part_kib(key, sizes) for key, sizes in one) / 1024 for name, one in maps.items()}
    # Equal ranks are one line of the plan: the largest of them.
    return {line: max(parts[name] for name in names if names[name] == line) for line in names.values()}


def compare(when, plan, real):
    """`plan` and `real` are MiB by process."""
    report = "\n".join(f"{name:12} planned {plan[name]:7.1f}  resident {real[name]:7.1f}" for name in plan)
    print(f"\n{when}\n{report}")
    for name in plan:
        # A router of a small model is a few MiB, of which its share of common libraries is a part.
        allowed = max(0.1 * real[name], ROUTER_MIB if name == "router" else 0)
        assert abs(plan[name] - real[name]) <= allowed, f"{when}:\n{report}"
    assert abs(sum(plan.values()) - sum(real.values())) <= 0.1 * sum(real.values()), f"{when}:\n{report}"


@pytest.mark.skipif(clusters.SANITIZED, reason="sanitizers take memory of their own")
def test_the_plan_is_within_a_tenth_of_what_is_resident(model, tmp_path):
    table = planned(model)
    host = table.pop("this host")
    assert host == pytest.approx(sum(row["together"] for row in table.values()), abs=1)
    with clusters.Cluster(model, tmp_path, stages=2, flags=FLAGS, prefill_flags=PREFILL_FLAGS,
                          decode_flags=DECODE_FLAGS) as cluster:
        # Pages and buffers are the system's until they are written.
        compare("ready", {name: row["weights"] + row["process"] for name, row in table.items()},
                measured(cluster))
        with Client(cluster.target) as client:
            prompts = [[(7 * i + j) % 256 for j in range(PROMPT_TOKENS)] for i in range(4)]
            answers = client.greedy_at_once(prompts, KV_TOKENS // 4 - PROMPT_TOKENS)
            assert all(answer.error is None for answer in answers), answers
            request = client.request(prompts[0][:600], prompt_logprobs=True, top_logprobs=2, max_tokens=1)
            assert client.generate(None, request=request).error is None
        compare("under load", {name: row["together"] for name, row in table.items()}, measured(cluster))


@pytest.mark.skipif(clusters.SANITIZED, reason="sanitizers take memory of their own")
@pytest.mark.parametrize("backend", [["--linear-backend", "torch"], ["--executor", "torch"]])
def test_the_plan_knows_what_torch_takes(model, tmp_path, backend):
    table = planned(model, *backend)
    table.pop("this host")
    with clusters.Cluster(model, tmp_path, stages=2, flags=[*FLAGS, *backend], prefill_flags=PREFILL_FLAGS,
                          decode_flags=DECODE_FLAGS) as cluster:
        compare("ready with torch", {name: row["weights"] + row["process"] for name, row in table.items()},
                measured(cluster))


@pytest.mark.skipif(clusters.SANITIZED, reason="sanitizers take memory of their own")
def test_the_plan_knows_what_ranks_take(model, tmp_path):
    table = planned(model, "--tp-size", 2)
    table.pop("this host")
    with clusters.Cluster(model, tmp_path, stages=2, ranks=2, flags=FLAGS, prefill_flags=PREFILL_FLAGS,
                          decode_flags=DECODE_FLAGS) as cluster:
        compare("ready", {name: row["weights"] + row["process"] for name, row in table.items()},
                measured(cluster, RANK_NAMES))
        with Client(cluster.target) as client:
            prompts = [[(7 * i + j) % 256 for j in range(PROMPT_TOKENS)] for i in range(4)]
            answers = client.greedy_at_once(prompts, KV_TOKENS // 4 - PROMPT_TOKENS)
            assert all(answer.error is None for answer in answers), answers
            request = client.request(prompts[0][:600], prompt_logprobs=True, top_logprobs=2, max_tokens=1)
            assert client.generate(None, request=request).error is None
        compare("under load", {name: row["together"] / row["count"] for name, row in table.items()},
                measured(cluster, RANK_NAMES))
