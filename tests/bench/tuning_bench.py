"""The case study of docs/tuning.md: time to first token of 128K tokens that have the chain for themselves, under fixed
chunk sizes, SGLang's rule with its smoothing factors, and the planner's own.

By `baton simulate`: the real cores in virtual time, with the costs of the profiles in common/engine/timed/profiles.
Nine prompts before let rules learn what chunks cost, which SGLang does with a sweep at the start. Prints one flat JSON
object, of seconds and of ratios to the closed-form bound of equal stages. `--svg DIRECTORY` draws the planner's and
the published rule's runs.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BATON = ROOT / "bazel-bin" / "services" / "baton" / "baton"
PROFILES = ROOT / "common" / "engine" / "timed" / "profiles"
TOKENS = 131072
LEARN_FROM = (50000, 3000, 20000) * 3
GAP_MS = 120_000  # Each prompt has the chain for itself.
# Name: profile, stages, SGLang's tuned base size for it.
CASES = {
    "qwen3_235b_p8": ("qwen3-235b-h20.json", 8, 18432),
    "qwen3_235b_p4": ("qwen3-235b-h20.json", 4, 18432),
    "deepseek_v31_p4": ("deepseek-v3.1-h20.json", 4, 12288),
}


def rules(base):
    for size in (2048, 4096, 6144, 8192, 12288, 16384):
        yield f"fixed_{size}", ["--chunk-policy", "fixed", "--chunked-prefill-size", str(size)]
    for factor in ("0.6", "0.65", "0.75", "0.8", "0.85", "1.0"):
        yield f"sglang_{base}_{factor}", ["--chunk-policy", "sglang", "--chunked-prefill-size", str(base),
                                          "--dynamic-chunking-smooth-factor", factor]
    yield "optimal", ["--chunk-policy", "optimal", "--chunked-prefill-size", "32768"]


def bound_s(profile, stages):
    """No plan has the first token sooner: equal chunks in time, as many as are best, without the grain of pages."""
    cost = profile["prefill"]
    overhead = cost["stage_overhead_us"] + cost["overhead_us"] / stages
    work = (cost["token_us"] * TOKENS + cost["attention_us"] * TOKENS * TOKENS) / stages
    return (work ** 0.5 + ((stages - 1) * overhead) ** 0.5) ** 2 / 1e6


def run(directory, profile, stages, flags, svg=None):
    """Seconds to the first token of the last prompt."""
    prompts = (*LEARN_FROM, TOKENS)
    rows = [{"timestamp": i * GAP_MS, "input_length": tokens, "output_length": 1} for i, tokens in enumerate(prompts)]
    (directory / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    drawn = ["--svg", svg, "--timeline-from-ms", str((len(prompts) - 1) * GAP_MS)] if svg else []
    subprocess.run([BATON, "simulate", "--timed-profile", PROFILES / profile, "--pp-size", str(stages),
                    "--trace", "trace.jsonl", "--kv-cache-tokens", "256k", "--json", "report.json", *flags, *drawn],
                   check=True, stdout=subprocess.DEVNULL, cwd=directory)
    found = json.loads((directory / "report.json").read_text(encoding="utf-8"))
    last = dict(zip(found["request_columns"], found["requests"][-1]))
    if last["status"] != "OK":
        raise SystemExit(f"{profile}, {flags}: {last['status']}")
    return (last["first_token_us"] - last["arrival_us"]) / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--svg", type=pathlib.Path, help="a directory for pictures")
    arguments = parser.parse_args()
    flat = {"tokens": TOKENS}
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        for case, (profile, stages, base) in CASES.items():
            bound = bound_s(json.loads((PROFILES / profile).read_text(encoding="utf-8")), stages)
            flat[f"{case}_bound_s"] = round(bound, 2)
            for rule, flags in rules(base):
                draw = arguments.svg is not None and case == "qwen3_235b_p8" and rule in ("optimal", "sglang_18432_0.8")
                picture = arguments.svg.resolve() / f"{rule}.svg" if draw else None
                seconds = run(directory, profile, stages, flags, picture)
                flat[f"{case}_{rule}_s"] = round(seconds, 2)
                flat[f"{case}_{rule}_over_bound"] = round(seconds / bound, 3)
    print(json.dumps(flat))
    return 0


if __name__ == "__main__":
    sys.exit(main())
