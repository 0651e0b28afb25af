"""`baton replay`: what a router went by when it chose, from its decision log."""

import json
import re
import subprocess

import pytest

import cluster as clusters
from client import Client

PROMPT = list(range(200))


def replay(*flags):
    arguments = [clusters.BATON, "replay", *flags]
    return subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def log(tiny_model, tmp_path_factory):
    """Decisions about one prompt twice, whose second has cached pages to find, and one other."""
    directory = tmp_path_factory.mktemp("replay")
    path = directory / "decisions.jsonl"
    with clusters.Cluster(tiny_model, directory, stages=1, chains=2, decodes=2, flags=["--page-size", 16],
                          router_flags=["--decision-log", path]) as cluster, Client(cluster.target) as client:
        for name, prompt in (("first", PROMPT), ("again", PROMPT), ("other", [7] * 90)):
            request = client.request(prompt, temperature=0, max_tokens=3)
            request.request_id = name
            assert client.generate(prompt, request=request).error is None
        clusters.wait_until(lambda: len(path.read_text().splitlines()) == 3, 10, "a line for each")
    return path


def test_one_request_is_shown_with_its_candidates(log):
    result = replay("--decision-log", log, "--request-id", "again", "--load-balance-policy", "least_load")
    assert result.returncode == 0, result.stderr
    assert "request again, attempt 1" in result.stdout and "200 prompt tokens, policy cost, ok" in result.stdout
    rows = [line for line in result.stdout.splitlines() if " of 64" in line]
    assert len(rows) == 4, "two chains and two decode services are four pairs"
    picked = [row for row in rows if row.lstrip().startswith("*")]
    assert len(picked) == 1 and picked[0].split()[3] == "192", "it went where the prompt was cached"
    assert "cached tokens: predicted 192, found 192" in result.stdout
    assert "least_load picks" in result.stdout


def test_all_together_are_summed_up(log):
    result = replay("--decision-log", log)
    assert result.returncode == 0, result.stderr
    assert "3 decisions, by cost 3" in result.stdout
    assert "cost picks another pair in 0 of them" in result.stdout
    assert "cached tokens: predicted 192, found 192" in result.stdout


def test_a_log_that_is_being_written_is_read_to_its_last_whole_line(log, tmp_path):
    part = tmp_path / "part.jsonl"
    part.write_text(log.read_text() + '{"request_id": "x", "att')
    assert "3 decisions" in replay("--decision-log", part).stdout


def test_a_request_that_its_client_gives_up_is_logged_with_its_workers(tiny_model, tmp_path):
    path = tmp_path / "decisions.jsonl"
    with clusters.Cluster(tiny_model, tmp_path, stages=1, flags=["--page-size", 16],
                          router_flags=["--decision-log", path]) as cluster, Client(cluster.target) as client:
        request = client.request([7] * 90, max_tokens=10_000, ignore_eos=True)
        request.request_id = "given-up"
        call = client.inference.Generate(request, timeout=60)
        next(iter(call))
        call.cancel()
        clusters.wait_until(path.read_text, 30, "its decision")
        line = json.loads(path.read_text())
        assert (line["request_id"], line["attempt"], line["outcome"]) == ("given-up", 1, "the client went away")
        logged = clusters.wait_until(
            lambda: [row for row in cluster.processes["router"].log().splitlines() if "id=given-up" in row], 30,
            "its line in the log")
        assert re.search(r"status=CANCELLED .* chain=\S+ decode=decode-0 attempts=1 ", logged[0]), logged


def test_what_cannot_be_replayed_is_said(log, tmp_path):
    broken, empty = tmp_path / "broken.jsonl", tmp_path / "empty.jsonl"
    broken.write_text(log.read_text() + json.dumps({"request_id": "x"}) + "\n")
    empty.write_text("")
    for flags, message in [([], "decision_log: required"), (["--decision-log", tmp_path / "absent"], "cannot open"),
                           (["--decision-log", empty], "has no decision"),
                           (["--decision-log", broken], "line 4: not a line of a decision log"),
                           (["--decision-log", log, "--request-id", "none"], "no decision about request none"),
                           (["--decision-log", log, "--load-balance-policy", "best"], "load_balance_policy")]:
        result = replay(*flags)
        assert result.returncode != 0 and message in result.stderr, (flags, result.stderr)
