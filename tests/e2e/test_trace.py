"""`baton trace`: the picture of a real run, from the spans that its processes wrote to a file."""

import json
import random
import re
import subprocess
import xml.etree.ElementTree

import pytest

import cluster as clusters
from client import Client

SVG = "{http://www.w3.org/2000/svg}"
STAGES = 3
PROFILE = {
    "name": "narrow",
    "model": {"layers": 12, "hidden_size": 64, "kv_heads": 1, "head_dim": 8, "context_tokens": 8192,
              "dtype": "bfloat16", "kv_dtype": "bfloat16"},
    "prefill": {"stage_overhead_us": 500, "overhead_us": 1000, "token_us": 20, "attention_us": 0.01},
    "decode": {"overhead_us": 1000},
}
LENGTHS = [900, 130, 420]
BOX = re.compile(r"request (\d+), tokens (\d+) to (\d+), ([\d.]+) to ([\d.]+) ms")


def trace(*flags):
    arguments = [clusters.BATON, "trace", *flags]
    return subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def run(tiny_model, tmp_path_factory):
    """(The file of spans, by request: the (first token, tokens) of its chunks as planned)."""
    directory = tmp_path_factory.mktemp("trace")
    profile, spans = directory / "profile.json", directory / "spans.jsonl"
    profile.write_text(json.dumps(PROFILE), encoding="utf-8")
    shared = ["--timed-profile", profile, "--otlp-traces-file", spans]
    prompts = [[random.Random(length).randrange(256) for _ in range(length)] for length in LENGTHS]
    with clusters.Cluster(tiny_model, directory, stages=STAGES, router_flags=shared,
                          flags=["--executor", "timed", *shared, "--page-size", 16, "--kv-cache-tokens", 8192],
                          prefill_flags=["--chunked-prefill-size", 128, "--chunk-policy", "fixed"]) as cluster, \
            Client(cluster.target) as client:
        answers = client.greedy_at_once(prompts, 2)
        assert all(answer.error is None for answer in answers), answers
    # A process that ends has written what it had.
    return spans, [[(chunk.token_begin, chunk.token_count) for chunk in answer.finished.timing.prefill.chunks]
                   for answer in answers]


def boxes_of(path):
    """By row's name: (request, first token, tokens, begin, end) of its boxes, in their order."""
    picture = xml.etree.ElementTree.parse(path).getroot()
    assert not picture.findall(f".//{SVG}script")
    names = {text.attrib["y"]: text.text for text in picture.iter(SVG + "text") if ", stage " in text.text}
    tops = sorted((float(y) - 18, name) for y, name in names.items())
    rows = {name: [] for _, name in tops}
    for rect in picture.iter(SVG + "rect"):
        title = rect.find(SVG + "title")
        if title is None:
            continue
        request, first, last, begin, end = BOX.fullmatch(title.text).groups()
        name = max((top, name) for top, name in tops if top <= float(rect.attrib["y"]) + 0.01)[1]
        rows[name].append((int(request), int(first), int(last) - int(first) + 1, float(begin), float(end)))
    return rows


def test_the_picture_has_the_chunks_that_were_planned(run, tmp_path):
    spans, planned = run
    result = trace("--otlp-traces-file", spans, "--svg", tmp_path / "run.svg")
    assert result.returncode == 0, result.stderr
    assert f"{STAGES * sum(map(len, planned))} chunks of {len(planned)} requests on 1 chain" in result.stdout
    rows = boxes_of(tmp_path / "run.svg")
    assert list(rows) == [f"chain-0, stage {stage}" for stage in range(STAGES)]
    for name, boxes in rows.items():
        chunks = {}
        for request, first, tokens, begin, end in boxes:
            assert 0 <= begin < end
            chunks.setdefault(request, []).append((first, tokens))
        # Requests are numbered as they began; a prompt's chunks follow one another, so they say whose they are.
        assert sorted(chunks.values()) == sorted(planned), name
    # A stage computes one plan at a time, the same ones as the stage before and after it.
    ends = {}
    for name, boxes in rows.items():
        plans = sorted({(begin, end) for _, _, _, begin, end in boxes})
        assert all(after[0] >= before[1] - 0.001 for before, after in zip(plans, plans[1:])), name
        for request, first, _, begin, end in boxes:
            assert begin >= ends.get((request, first), 0) - 1, "clocks of one machine"
            ends[request, first] = end


def test_a_window_of_it(run, tmp_path):
    spans, _ = run
    assert trace("--otlp-traces-file", spans, "--svg", tmp_path / "all.svg").returncode == 0
    assert trace("--otlp-traces-file", spans, "--svg", tmp_path / "part.svg", "--timeline-from-ms", 5,
                 "--timeline-ms", 10).returncode == 0
    everything, part = (boxes_of(tmp_path / name) for name in ("all.svg", "part.svg"))
    for name, boxes in everything.items():
        assert part[name] == [box for box in boxes if 5 <= box[3] < 15], name


@pytest.mark.parametrize("text,words", [
    ("{\"resourceSpans\": [{\"resource\": {}}]}\nnonsense\n", "line 2: "),
    ("{\"resourceSpans\": [{\"resource\": {}, \"scopeSpans\": [{\"spans\": [{\"name\": 5}]}]}]}\n",
     "line 1: resourceSpans[0].scopeSpans[0].spans[0].name: expected text, got 5"),
])
def test_a_file_that_is_none_is_refused_with_line_and_field(tmp_path, text, words):
    spans = tmp_path / "spans.jsonl"
    spans.write_text(text, encoding="utf-8")
    result = trace("--otlp-traces-file", spans, "--svg", tmp_path / "run.svg")
    assert result.returncode == 2 and f"{spans}: " in result.stderr and words in result.stderr, result.stderr
    assert not (tmp_path / "run.svg").exists()


def test_what_is_missing_is_said(tmp_path):
    empty = tmp_path / "spans.jsonl"
    empty.write_text("", encoding="utf-8")
    for flags, status, words in [
            (["--svg", "x.svg"], 2, "otlp_traces_file: required"),
            (["--otlp-traces-file", empty], 2, "svg: required"),
            (["--otlp-traces-file", empty, "--svg", tmp_path / "x.svg"], 3, "has no chunk"),
            (["--otlp-traces-file", tmp_path / "absent", "--svg", tmp_path / "x.svg"], 3, "absent"),
            (["--port", 1], 2, "--port is not an option of trace")]:
        result = trace(*flags)
        assert result.returncode == status and words in result.stderr, result.stderr
