"""`baton serve MODEL`: one command from a model to answers, and what it refuses, says and leaves behind."""

import json
import os
import re
import signal
import subprocess
import time
import urllib.request

import pytest

import cluster as clusters
from test_taken_ports import listener
from test_up import Up, assert_answers, assert_nobody_left

AUSTEN = clusters.ROOT / "models/austen"
READY_SECONDS_MAX = 2


def serve(model, *flags, **more):
    return Up(model, *flags, command=["serve", str(model)], **more)


def refused(*arguments):
    """The one line with which the command ends, and its exit code."""
    done = subprocess.run([str(clusters.BATON), *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          check=False)
    assert not done.stdout and len(done.stderr.splitlines()) == 1, done
    return done.returncode, done.stderr.strip()


def seconds_to_ready_again(first):
    """Of two more starts where the first was late: something else may have had the processors."""
    for _ in range(0 if first < READY_SECONDS_MAX else 2):
        with serve(AUSTEN) as again:
            begun = time.monotonic()
            again.wait_ready()
            yield time.monotonic() - begun


def test_the_shipped_model_is_ready_in_two_seconds_and_answers():
    with serve(AUSTEN) as started:
        begun = time.monotonic()
        http, _ = started.wait_ready()
        seconds = time.monotonic() - begun
        if not clusters.SANITIZED:
            assert min([seconds, *seconds_to_ready_again(seconds)]) < READY_SECONDS_MAX, started.text
        assert_answers(started.curl_line())
        rows = started.table()
        assert [row["role"] for row in rows.values()] == ["router", "colocated"]
        with urllib.request.urlopen(f"http://{http}/readiness", timeout=10) as reply:
            assert reply.status == 200
        children = started.children()
        started.popen.send_signal(signal.SIGTERM)
        assert started.wait_end() == 0
        assert_nobody_left(children)


@pytest.mark.parametrize("flags,names", [
    (["--pp-size=2"], ["router", "colocated-0-0", "colocated-0-1"]),
    (["--pipeline-parallel-size", 3], ["router", "colocated-0-0", "colocated-0-1", "colocated-0-2"]),
    (["--prefill-chains=2"], ["router", "colocated-0-0", "colocated-1-0"]),
], ids=["two stages", "three stages", "two chains"])
def test_any_shape(tiny_model, flags, names):
    with serve(tiny_model, *flags) as started:
        started.wait_ready()
        assert list(started.table()) == names
        assert_answers(started.curl_line())


def test_up_starts_the_same_by_its_mode(tiny_model):
    with Up(tiny_model, "--disaggregation-mode=null") as started:
        started.wait_ready()
        assert list(started.table()) == ["router", "colocated-0-0", "colocated-0-1"]
        assert_answers(started.curl_line())


@pytest.mark.parametrize("model", [["--model-path", "{}"], ["--model={}"]], ids=["--model-path", "--model"])
def test_the_model_may_be_a_flag(tiny_model, model):
    words = [word.format(tiny_model) for word in model]
    with Up(tiny_model, command=["serve", *words]) as started:
        started.wait_ready()
        assert_answers(started.curl_line())


def test_one_answer_needs_no_flag_of_others_explained(tiny_model):
    """A line of vLLM's and SGLang's, with what means something else here told once."""
    with serve(tiny_model, "--trust-remote-code", "--enable-mixed-chunk", "--max-num-seqs", 8) as started:
        started.wait_ready()
        assert len([line for line in started.lines if "--enable-mixed-chunk: plans of a colocated chain" in line]) == 1
        assert_answers(started.curl_line())


def test_an_answer_streams(tiny_model):
    with serve(tiny_model) as started:
        http, _ = started.wait_ready()
        body = json.dumps({"prompt": "It is", "max_tokens": 8, "ignore_eos": True, "stream": True}).encode()
        request = urllib.request.Request(f"http://{http}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            text = reply.read().decode()
        assert text.count("data: ") > 4 and text.rstrip().endswith("data: [DONE]")


@pytest.mark.parametrize("arguments,code,said", [
    (["serve"], 2, "model_path: required: the directory of the model (baton serve DIR)"),
    (["serve", "no/such/model"], 2, "no/such/model"),
    (["serve", "{model}", "second"], 2, "second: unexpected argument"),
    (["serve", "{model}", "--model-path", "other"], 2, "as the argument and 'other' by --model-path"),
    (["serve", "{model}", "--decodes=2"], 2, "disaggregation_mode = null"),
    (["serve", "{model}", "--disaggregation-mode", "prefill"], 2, "serve starts chains that also decode"),
    (["serve", "{model}", "--port=x"], 2, "port: got 'x' from flag --port"),
    (["serve", "{model}", "--pp-size=7"], 2, "pp_size: "),
    (["serve", "{model}", "--prot=1"], 2, "did you mean '--port'"),
    (["up", "--model-path", "{model}", "--target-itl-ms=5"], 2, "disaggregation_mode = null"),
    (["up", "--model-path", "{model}", "--decode-max-wait-ms=5"], 2, "disaggregation_mode = null"),
    (["serve", "{model}", "--target-itl-ms=5", "--decode-max-wait-ms=6"], 2,
     "decode_max_wait_ms: got 6, and target_itl_ms = 5"),
    (["serve", "{model}", "--pp-max-micro-batch-size=9", "--max-running-requests=8"], 2,
     "pp_max_micro_batch_size: got 9, and max_running_requests = 8"),
    (["serve", "{model}", "--schedule-conservativeness=many"], 2, "a decimal number from 0 to 2"),
    (["worker", "--model-path", "{model}", "--decode-id=1"], 2, "disaggregation_mode = null"),
    (["simulate", "--disaggregation-mode=decode"], 2, "simulate runs a cluster"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else None)
def test_what_cannot_work_is_one_line(tiny_model, arguments, code, said):
    words = [str(word).format(model=tiny_model) for word in arguments]
    ended, line = refused(*words)
    assert ended == code and line.startswith(f"baton {words[0]}: ") and said in line, line


def test_a_taken_port_is_named(tiny_model):
    with listener() as port, serve(tiny_model, f"--port={port}") as started:
        assert started.wait_end() == 1
        assert len(started.lines) == 1, started.text
        assert started.lines[0].startswith("baton serve: cannot listen on ")
        assert started.lines[0].endswith("Address already in use (--port)")


def test_a_chain_that_dies_is_started_again(tiny_model):
    with serve(tiny_model) as started:
        started.wait_ready()
        os.kill(started.children()["colocated-0-0"], signal.SIGKILL)
        started.wait_line(r"colocated-0-0 +\| was ended by signal 9 \(Killed\); starting it again")
        assert_answers(started.curl_line())  # It waits for the chain.


def test_validate_says_what_serve_would_be(tiny_model):
    def validated(*flags):
        done = subprocess.run([str(clusters.BATON), "validate", "--model-path", tiny_model, "--page-size=16",
                               "--disaggregation-mode=null", *flags], capture_output=True, text=True, timeout=60,
                              check=False)
        return done.returncode, done.stdout
    code, text = validated("--pp-size=2", "--kv-cache-tokens=4096")
    assert code == 0 and text.startswith("OK: a router and 1 colocated chain of 2 stages\n"), text
    assert re.search(r"^colocated 1 +1 +\[3, 6\)", text, re.MULTILINE) and "decode  " not in text
    assert "prompt and continuation of a request that fits: 4096 tokens" in text
    code, text = validated("--pp-size=2", "--pp-rank=1")
    assert code == 0 and text.startswith("OK: stage 1 of a colocated chain of 2\n"), text
    code, text = validated("--pp-size=4", "--nnodes=2", "--node-rank=1", "--chain-id=c")
    assert code == 0 and "node 1 of 2: stage 2 to stage 3 of c, colocated, 4 stages" in text
