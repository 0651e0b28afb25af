"""What a build says of itself: the commit it is made from, and when that was."""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def git(*arguments):
    """Empty outside of a repository, such as in an unpacked release."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def revision():
    commit = git("rev-parse", "HEAD")
    return commit + ("-dirty" if commit and git("status", "--porcelain", "--untracked-files=no") else "")


def commit_seconds():
    """The time of what is built, not of building."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct") or 0)
