"""Fuzz targets with new seeds: schemas, regular expressions, grammars, chat templates, tokenizer files.

    ./dev check fuzz [--seconds N] [--seed N] [--only NAME]...

Each target runs for so many seconds. What crashes it, breaks one of its promises or takes more than 60 s for one input
is left in .cache/fuzz/TARGET/last (tools/fuzz).
"""

import argparse
import pathlib
import random
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))

from bazel import bazel  # noqa: E402
from tally import Tally, say  # noqa: E402

HANGS_S = 60


def targets():
    """Labels of the fuzz targets."""
    found = subprocess.run(["bazel", "query", "--noshow_progress", "attr(tags, fuzz, tests(//common/...))"], cwd=ROOT,
                           capture_output=True, text=True, check=True)
    return sorted(found.stdout.split())


def fuzz(label, seconds, seed):
    """What went wrong; empty if nothing did."""
    package, name = label[2:].split(":")
    keep = ROOT / ".cache/fuzz" / name
    keep.mkdir(parents=True, exist_ok=True)
    command = [ROOT / "bazel-bin" / package / name, f"--seed={seed}", f"--seconds={seconds}", f"--keep={keep}",
               ROOT / package / "corpus" / name]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False,
                              timeout=seconds + HANGS_S)
    except subprocess.TimeoutExpired:
        return f"an input takes more than {HANGS_S} s: {keep / 'last'}"
    if done.returncode != 0:
        words = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"exit code {done.returncode}, {words}: {keep / 'last'}"
    say(f"{name}: {done.stdout.strip()}")
    return ""


def main():
    parser = argparse.ArgumentParser(prog="./dev check fuzz", description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    arguments = parser.parse_args()
    tally = Tally()
    say(f"seed {arguments.seed}")
    labels = [label for label in targets() if not arguments.only or label.split(":")[1] in arguments.only]
    tally.step("the targets build", bool(labels) and bazel("build", *labels) == 0)
    for label in labels if not tally.failed else []:
        wrong = fuzz(label, arguments.seconds, arguments.seed)
        tally.step(f"{label} {wrong}".strip(), not wrong)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
