"""`./dev lint`: the format and the linters' findings of what has changed since it was last linted clean.

tools/lint/README.md says what runs on what. `--all` lints the whole tree; `--record` notes in
tools/lint/clean.txt what was found clean.
"""

import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))

import clean_list  # noqa: E402
from bazel import PACKAGES, bazel  # noqa: E402
from tally import Tally, say  # noqa: E402


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
                            cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return sorted(path for path in set(listed) if (ROOT / path).is_file())


def shell_files():
    return [path for path in tracked() if path.endswith(".sh") or (ROOT / path).open("rb").readline(64).startswith(
        (b"#!/usr/bin/env bash", b"#!/bin/sh", b"#!/bin/bash"))]


def clean(*command):
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def rewrite():
    """`./dev format`: every formatter on the whole tree."""
    formatted = [clean("clang-format", "-i", *tracked("*.cc", "*.h")),
                 clean("autopep8", "--in-place", "--max-line-length=120", "--ignore=E402,E501,W503,W504",
                       *tracked("*.py")),
                 clean("shfmt", "-w", *shell_files())]
    return 0 if all(formatted) else 1


def tidy_group(path):
    """As tools/clang_tidy.bzl names it."""
    return "tidy_" + path.replace("/", "_").replace(".", "_").replace("-", "_")


def clang_tidy(everything, record):
    tree = clean_list.Tree()
    if everything:
        sources, left = tree.sources, []
    else:
        plan = clean_list.plan(tree)
        sources, left = plan.sources, plan.left
        say(f"clang-tidy: {len(plan.changed)} changed sources, {len(plan.neighbours)} near changed headers"
            + (f"; {len(left)} more whose headers changed are left to ./dev check lint" if left else ""))
    if not sources:
        return True
    groups = ["report"] if everything else sorted(map(tidy_group, sources))
    # Not --config=lint: its output group, that of every source, would come on top.
    if bazel("build", "--aspects=//tools:clang_tidy.bzl%clang_tidy_aspect", "--keep_going",
             "--output_groups=" + ",".join(groups), *PACKAGES) != 0:
        return False
    if record and everything:
        clean_list.write(tree.lines(sources))
    elif record:
        clean_list.add(tree, sources)
    return True


def lint(tally, everything=False, record=False):
    """Adds one step to `tally` for each linter."""
    say("clang-format, flake8, shellcheck, shfmt")
    tally.step("clang-format", clean("clang-format", "--dry-run", "-Werror", *tracked("*.cc", "*.h")))
    tally.step("flake8", clean("flake8", *tracked("*.py")))
    tally.step("shellcheck", clean("shellcheck", *shell_files()))
    tally.step("shfmt", clean("shfmt", "-d", *shell_files()))
    say("clang-tidy" + (" on the whole tree" if everything else ""))
    tally.step("clang-tidy", clang_tidy(everything, record))


def main():
    parser = argparse.ArgumentParser(prog="./dev lint", description=__doc__)
    parser.add_argument("--all", action="store_true", help="the whole tree")
    parser.add_argument("--record", action="store_true", help="note what is clean in tools/lint/clean.txt")
    parser.add_argument("--format", action="store_true", help="lint nothing; rewrite what formatters would")
    arguments = parser.parse_args()
    if arguments.format:
        return rewrite()
    tally = Tally()
    lint(tally, arguments.all, arguments.record)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
