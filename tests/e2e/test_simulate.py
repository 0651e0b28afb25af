"""`baton simulate`: a profile and a workload in, a table, JSON and a picture out; what is wrong is refused by name."""

import json
import subprocess
import xml.etree.ElementTree

import pytest

import cluster as clusters

PROFILE = clusters.ROOT / "common" / "engine" / "timed" / "profiles" / "qwen3-235b-h20.json"
SVG = "{http://www.w3.org/2000/svg}"
FLAGS = ["--pp-size", 4, "--kv-cache-tokens", 262144]


def simulate(*flags, profile=PROFILE):
    arguments = [clusters.BATON, "simulate", "--timed-profile", profile, *FLAGS, *flags]
    return subprocess.run(list(map(str, arguments)), capture_output=True, text=True, check=False, timeout=120)


def write_trace(path, rows):
    path.write_text("".join(
        json.dumps({"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": [1, 2]}) + "\n"
        for at, prompt, output in rows), encoding="utf-8")
    return path


def test_a_table_json_and_a_picture_of_one_run(tmp_path):
    rows = [(0, 20000, 8), (500, 3000, 4), (700, 60000, 2), (60000, 100, 16)]
    flags = ["--trace", write_trace(tmp_path / "trace.jsonl", rows), "--json", tmp_path / "run.json",
             "--svg", tmp_path / "run.svg", "--slo-ttft-ms", 5000]
    result = simulate(*flags)
    assert result.returncode == 0, result.stderr
    assert "4 of 4 answered" in result.stdout and "goodput" in result.stdout, result.stdout
    run = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert [row[1:3] for row in run["requests"]] == [[prompt, output] for _, prompt, output in rows]
    assert [row[0] for row in run["requests"]] == [1000 * at for at, _, _ in rows]
    assert f"{run['ttft_ms']['mean']:.1f}" in result.stdout
    for stage in run["chains"][0]["stages"]:
        parts = [value for key, value in stage.items() if key.endswith("_us")]
        assert len(parts) == 6 and sum(parts) == round(1e6 * run["seconds"])
    picture = xml.etree.ElementTree.parse(tmp_path / "run.svg").getroot()
    assert picture.tag == SVG + "svg" and not picture.findall(f".//{SVG}script")
    titles = [title.text for title in picture.iter(SVG + "title")]
    assert len({title.split(",")[0] for title in titles}) == 4, "every request has its boxes"
    stages = [text.text for text in picture.iter(SVG + "text") if text.text.startswith("chain 0, stage")]
    assert len(stages) == 4
    again = simulate(*flags)
    assert again.stdout == result.stdout


def test_json_on_standard_output_and_a_seed_that_counts():
    drawn = ["--requests", 50, "--request-rate", 2, "--prompt-tokens", "lognormal:2000:0.8:30000",
             "--output-tokens", "1-20", "--json", "-"]
    first = simulate(*drawn, "--workload-seed", 5)
    assert first.returncode == 0 and json.loads(first.stdout)["answered_requests"] == 50
    assert simulate(*drawn, "--workload-seed", 5).stdout == first.stdout
    assert simulate(*drawn, "--workload-seed", 6).stdout != first.stdout


def test_stages_that_have_measured_nothing_learn_from_the_first_prompts(tmp_path):
    trace = write_trace(tmp_path / "trace.jsonl", [(0, 8000, 1), (60000, 8000, 1)])

    def first_tokens_us(*flags):
        report = json.loads(simulate("--trace", trace, "--json", "-", *flags).stdout)
        rows = [dict(zip(report["request_columns"], row)) for row in report["requests"]]
        return [row["first_token_us"] - row["arrival_us"] for row in rows]
    measured, learned = first_tokens_us(), first_tokens_us("--chunk-sweep-ms", 0)
    assert learned[0] > 1.5 * measured[0]
    assert learned[1] < 1.1 * measured[1]


def test_chunks_are_as_large_as_real_stages_would_have_them(tmp_path):
    """With nothing set, by the same rule: 128K tokens have their first token as with the size that it comes to."""
    flags = ["--trace", write_trace(tmp_path / "trace.jsonl", [(0, 131072, 1)]), "--pp-size", 8, "--json", "-"]
    default, as_said, small = (simulate(*flags, *size).stdout for size in (
        [], ["--chunked-prefill-size", 16384], ["--chunked-prefill-size", 2048]))
    assert default == as_said != small
    assert json.loads(default)["ttft_ms"]["mean"] < 8790 < json.loads(small)["ttft_ms"]["mean"]


def test_colocated_chains_and_pairs_serve_one_workload(tmp_path):
    """A bound on the time between tokens keeps them close, and first tokens come later for it."""
    flags = ["--disaggregation-mode", "null", "--requests", 60, "--request-rate", 2, "--prompt-tokens", "200@3,20000@1",
             "--output-tokens", 100, "--json", "-"]

    def run(*more):
        result = simulate(*flags, *more)
        assert result.returncode == 0, result.stderr
        report = json.loads(result.stdout)
        assert report["answered_requests"] == 60 and report["decodes"] == [], report["failed_requests"]
        assert report["chains"][0]["retractions"] == 0
        return report
    free, bounded, waiting = run(), run("--target-itl-ms", 200), run("--decode-max-wait-ms", 50)
    for report in (bounded, waiting):
        assert report["itl_ms"]["p99"] < 0.8 * free["itl_ms"]["p99"]
        assert report["ttft_ms"]["mean"] > free["ttft_ms"]["mean"]
    table = simulate(*flags[:-2])
    assert "1 colocated chain of 4 stages" in table.stdout and "decode-0" not in table.stdout, table.stdout


def test_stages_of_a_decode_service_share_its_layers(tmp_path):
    """With two requests at once they compute at the same time; with one they take turns."""
    def tokens_per_s(*flags):
        result = simulate("--arrival", "burst", "--requests", 8, "--prompt-tokens", 100, "--output-tokens", 100,
                          "--json", tmp_path / "run.json", *flags)
        assert result.returncode == 0, result.stderr
        report = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
        return report["output_tokens_per_s"], report["decodes"][0]["stages"], result.stdout
    whole, stages, _ = tokens_per_s("--max-running-requests", 1)
    assert [stage["layers"] for stage in stages] == [94]
    one, stages, table = tokens_per_s("--decode-pp-size", 2, "--max-running-requests", 1)
    assert [stage["layers"] for stage in stages] == [47, 47] and 0.9 * whole < one <= whole
    assert "1 decode service of 2 stages (47,47 layers)" in table and "decode-0 1 " in table, table
    two, _, _ = tokens_per_s("--decode-pp-size", 2, "--max-running-requests", 2)
    assert 1.8 * one < two < 2 * one
    uneven, stages, _ = tokens_per_s("--decode-pp-size", 2, "--decode-pp-layer-partition", "20,74",
                                     "--max-running-requests", 2)
    assert [stage["layers"] for stage in stages] == [20, 74] and one < uneven < 0.8 * two


def test_a_timeline_is_a_window(tmp_path):
    flags = ["--arrival", "burst", "--requests", 3, "--prompt-tokens", 30000, "--svg", tmp_path / "run.svg"]
    assert simulate(*flags, "--timeline-from-ms", 2000, "--timeline-ms", 1000).returncode == 0
    picture = xml.etree.ElementTree.parse(tmp_path / "run.svg").getroot()
    for title in picture.iter(SVG + "title"):
        begin_ms = float(title.text.split(", ")[2].split(" ")[0])
        assert 2000 <= begin_ms < 3000, title.text


@pytest.mark.parametrize("flags,words", [
    (["--pp-layer-partition", "20,20,20,20"], "pp_layer_partition"),
    (["--pp-layer-partition", "20,20,20"], "pp_layer_partition"),
    (["--disaggregation-mode", "null", "--decode-pp-size", 2], "decode_pp_size: got 2, and disaggregation_mode = null"),
    (["--decode-pp-size", 65], "decode_pp_size: got '65' from flag --decode-pp-size; expected a whole number from 1"),
    (["--decode-pp-size", 2, "--decode-pp-layer-partition", "47,48"], "decode_pp_layer_partition: '47,48' sums to 95"),
    (["--decode-pp-size", 2, "--decode-pp-layer-partition", "auto"], "decode_pp_layer_partition: got auto"),
    (["--prompt-tokens", "9-3"], "prompt_tokens: '9-3' is a range that begins above its end"),
    (["--request-rate", "fast"], "request_rate: got 'fast'"),
    (["--chunked-prefill-size", 100], "chunked_prefill_size: got 100; expected a multiple of page_size = 64"),
    (["--requests", 300000], "requests: got '300000' from flag --requests; expected a whole number from 0 to 200000"),
    (["--port", 1], "--port is not an option of simulate"),
    (["--disaggregation-mode", "decode"], "disaggregation_mode: got decode, and simulate runs a cluster"),
    (["--disaggregation-mode", "null", "--decodes", 2], "decodes: got 2, and disaggregation_mode = null"),
    (["--target-itl-ms", 5], "target_itl_ms: got 5"),
    (["--decode-kv-cache-tokens", 10], "decode_kv_cache_tokens: got 10; expected at least one page"),
])
def test_what_cannot_be_is_refused(flags, words):
    result = simulate(*flags)
    assert result.returncode == 2 and words in result.stderr, result.stderr


def test_bad_files_are_named_with_line_and_field(tmp_path):
    trace = write_trace(tmp_path / "trace.jsonl", [(0, 10, 1), (5, 0, 1)])
    result = simulate("--trace", trace)
    assert result.returncode == 2
    assert f"{trace}:2: input_length is 0, expected a whole number from 1 to 16777216" in result.stderr
    profile = tmp_path / "profile.json"
    profile.write_text(PROFILE.read_text(encoding="utf-8").replace("\"token_us\": 35.7", "\"token_us\": -1"),
                       encoding="utf-8")
    result = simulate(profile=profile)
    assert result.returncode == 2 and f"{profile}:" in result.stderr and "token_us" in result.stderr, result.stderr
    profile.write_text(PROFILE.read_text(encoding="utf-8").replace("\"layers\": 94", "\"layers\": 6"), encoding="utf-8")
    result = simulate("--decode-pp-size", 7, profile=profile)
    assert result.returncode == 2 and "decode_pp_size: got 7 stages for 6 layers" in result.stderr, result.stderr
    result = simulate("--trace", tmp_path / "absent.jsonl")
    assert result.returncode == 3 and "absent.jsonl" in result.stderr, result.stderr
    result = subprocess.run([str(clusters.BATON), "simulate"], capture_output=True, text=True, check=False)
    assert result.returncode == 2 and "timed_profile: required" in result.stderr
