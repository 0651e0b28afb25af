"""kill -9 of every role under load, many times: bystanders unharmed, texts of a dead decode service go on, other
requests of the victim end with a clear status in time, pages come back, a restarted process joins again."""

import concurrent.futures
import random
import signal
import threading
import time

import grpc
import pytest

import cluster as clusters
import stubs
from client import Client, membership
from remembered import RememberedOracle

ROUNDS = 20
STOPS = 3
RUNNING = 8
COUNT = 60
END_SECONDS = 4.0


@pytest.fixture(scope="module")
def answers_wanted(tiny_model):
    oracle = RememberedOracle(tiny_model)
    prompts = [[random.Random(i).randrange(256) for _ in range(150 + 40 * i)] for i in range(RUNNING)]
    return prompts, [oracle.greedy(prompt, COUNT) for prompt in prompts]


@pytest.fixture
def chaos(tiny_model, answers_wanted, tmp_path):
    """Two chains of two stages and two decodes: a victim always has bystanders."""
    with clusters.Cluster(tiny_model, tmp_path, stages=2, chains=2, decodes=2, flags=["--page-size", 16],
                          router_flags=["--load-balance-policy", "round_robin"]) as cluster:
        wait_joined(cluster, 30, "every worker to be ready")
        yield cluster, *answers_wanted


def incarnations(cluster):
    """{instance id: incarnation} of the ready workers that the router lists; none if it is down."""
    try:
        with membership(cluster.cluster_target) as router:
            workers = router.List(stubs.cluster.ListRequest(), timeout=2).workers
    except grpc.RpcError:
        return {}
    return {w.worker.instance.instance_id: w.worker.instance.incarnation for w in workers if w.ready}


def all_joined(cluster, old=None):
    """Every worker is ready, says so itself, every chain is paired with every decode, and the victim of
    `old` = (name, incarnation) is a new one."""
    here = incarnations(cluster)
    if len(here) != len(cluster.processes) - 1 or (old and here[old[0]] == old[1]):
        return False
    if cluster.metric("router", "baton_ready_pairs") != cluster.chains * cluster.decodes:
        return False
    return all(cluster.get("/readiness", port)[0] == 200 for port in cluster.metrics_ports.values())


def wait_joined(cluster, seconds, what, old=None):
    """Waits for all_joined. The router's gauges follow its list by up to 50 ms, so what they said of the
    victim's last incarnation must not count: they are asked again after a moment."""
    clusters.wait_until(lambda: all_joined(cluster, old), seconds, what)
    time.sleep(0.2 * clusters.PATIENCE)
    clusters.wait_until(lambda: all_joined(cluster, old), seconds, what)


def run_under_load(cluster, prompts, act):
    """Starts all prompts, calls `act` once some are decoding, returns (answers, seconds after act)."""
    started = threading.Semaphore(0)
    acted_at, early_ends = [], []
    with Client(cluster.target) as client, concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        def one(prompt):
            answer = client.greedy(prompt, COUNT, on_first=started.release)
            if not answer.tokens:
                early_ends.append(answer.error)
            return answer, time.monotonic()
        futures = [pool.submit(one, prompt) for prompt in prompts]
        for _ in range(random.randrange(1, len(prompts))):
            assert started.acquire(timeout=10 * clusters.PATIENCE), f"no first tokens; ended: {early_ends}"
        act()
        acted_at.append(time.monotonic())
        done = [future.result() for future in futures]
    return [answer for answer, _ in done], [max(0, at - acted_at[0]) for _, at in done]


@pytest.mark.parametrize("victim", ["decode-0", "prefill-0-0", "prefill-1-1"])
def test_kill_of_a_worker_harms_only_its_own_requests(chaos, victim):
    cluster, prompts, expected = chaos
    resumed = 0
    for round_ in range(ROUNDS):
        old = (victim, incarnations(cluster)[victim])
        answers, seconds = run_under_load(cluster, prompts, cluster.processes[victim].kill)
        for prompt_index, (answer, took) in enumerate(zip(answers, seconds)):
            if answer.error is None:
                assert answer.tokens == expected[prompt_index], f"round {round_}: a wrong answer"
                resumed += answer.finished.resumes
                continue
            assert victim.startswith("prefill"), f"round {round_}: a text did not go on: {answer.error.details()}"
            assert answer.code == grpc.StatusCode.UNAVAILABLE, answer.error
            assert victim in answer.error.details(), answer.error.details()
            assert answer.tokens == expected[prompt_index][:len(answer.tokens)]
            assert took < END_SECONDS * clusters.PATIENCE, f"round {round_}: {took:.1f} s"
        # Round robin spreads the eight over both: at most half of them can be the victim's.
        assert sum(answer.error is not None for answer in answers) <= RUNNING // 2
        cluster.processes[victim].start()
        wait_joined(cluster, 20, f"{victim} to join again", old)
        clusters.wait_until(cluster.idle, 10, "pages to come back")
    assert victim.startswith("prefill") or resumed > 0, "the kills never met a running request"


def test_kill_of_the_router_frees_everything(chaos):
    cluster, prompts, _ = chaos
    for _ in range(ROUNDS):
        answers, seconds = run_under_load(cluster, prompts, cluster.processes["router"].kill)
        for answer, took in zip(answers, seconds):
            assert answer.error is None or answer.code == grpc.StatusCode.UNAVAILABLE, answer.error
            assert took < END_SECONDS * clusters.PATIENCE
        clusters.wait_until(cluster.idle, 10, "pages to come back without a router")
        cluster.processes["router"].start()
        wait_joined(cluster, 20, "workers to register again")


@pytest.mark.parametrize("victim", ["decode-1", "prefill-1-0"])
def test_a_stopped_worker_is_noticed(chaos, victim):
    """To its peers a stopped worker is dead, and they let go of it: once it is ready again, every request
    over it is answered, also those that come at once."""
    cluster, prompts, expected = chaos
    process = cluster.processes[victim]
    for _ in range(STOPS):
        answers, seconds = run_under_load(cluster, prompts, lambda: process.signal(signal.SIGSTOP))
        try:
            for index, (answer, took) in enumerate(zip(answers, seconds)):
                if answer.error is None:
                    assert answer.tokens == expected[index]
                else:
                    assert answer.code == grpc.StatusCode.UNAVAILABLE, answer.error
                    assert victim in answer.error.details()
                    assert took < END_SECONDS * clusters.PATIENCE
            clusters.wait_until(lambda: victim not in incarnations(cluster), 10, f"{victim} to be given up")
        finally:
            process.signal(signal.SIGCONT)
        wait_joined(cluster, 30, f"{victim} to come back")
        clusters.wait_until(cluster.idle, 15, "pages to come back")
        answers, _ = run_under_load(cluster, prompts, lambda: None)
        for answer, tokens in zip(answers, expected):
            assert answer.error is None, answer.error
            assert answer.tokens == tokens


def test_clients_that_leave_free_their_pages(chaos):
    cluster, prompts, _ = chaos
    with Client(cluster.target) as client:
        for delay_ms in (0, 1, 3, 10, 30, 100):
            calls = [client.inference.Generate(client.request(prompt, temperature=0, max_tokens=500,
                                                              ignore_eos=True)) for prompt in prompts]
            time.sleep(delay_ms / 1000)
            for call in calls:
                call.cancel()
    clusters.wait_until(cluster.idle, 10, "pages to come back")
