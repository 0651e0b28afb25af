"""Lints the whole tree, whatever tools/lint/clean.txt says, and rewrites that list if all is clean."""

import pathlib
import sys

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path[:0] = [str(TOOLS / "dev"), str(TOOLS / "lint")]

from lint import lint  # noqa: E402
from tally import Tally  # noqa: E402


def main():
    tally = Tally()
    lint(tally, everything=True, record=True)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
