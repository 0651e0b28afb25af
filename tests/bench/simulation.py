"""Running `baton simulate` and reading its report."""

import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BATON = ROOT / "bazel-bin" / "services" / "baton" / "baton"
PROFILES = ROOT / "common" / "engine" / "timed" / "profiles"


def simulate(flags, trace=None):
    """(Its report, the report's requests by column.) A row of a trace: arrival, ms; tokens of prompt and output; and
    perhaps the hashes of the prompt's blocks. Paths in `flags` are absolute."""
    with tempfile.TemporaryDirectory() as directory:
        command = [BATON, "simulate", *flags, "--json", "-"]
        if trace is not None:
            (pathlib.Path(directory) / "trace.jsonl").write_text("".join(
                json.dumps({"timestamp": at, "input_length": prompt, "output_length": output,
                            **({"hash_ids": hashes[0]} if hashes else {})}) + "\n"
                for at, prompt, output, *hashes in trace), encoding="utf-8")
            command += ["--trace", "trace.jsonl"]  # Pictures name it, as it is said here.
        report = json.loads(subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE,
                                           text=True, cwd=directory).stdout)
    rows = [dict(zip(report["request_columns"], row)) for row in report["requests"]]
    unanswered = [row for row in rows if row["status"] != "OK"]
    if unanswered:
        raise SystemExit(f"{len(unanswered)} requests were not answered with {' '.join(map(str, flags))}: "
                         f"{unanswered[0]}")
    return report, rows


def first_token_us(row):
    return row["first_token_us"] - row["arrival_us"]
