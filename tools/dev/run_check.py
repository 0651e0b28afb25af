"""`./dev check [NAME... | NAME OPTION...]`: the proofs of tests/checks too slow or too particular for `./dev test`.

Without a name they are listed; `all` runs every one; options are those of the one check before them. Each is a
program of its own, tests/checks/NAME.py, which closes with the line `N passed, N failed, N skipped` and exits with 1
if anything failed; what it needs and does not find it skips, and says so.
"""

import argparse
import ast
import subprocess
import sys

from bazel import ROOT
from tally import say

CHECKS = ROOT / "tests" / "checks"


def checks():
    """{name: first line of its docstring}."""
    found = {}
    for path in sorted(CHECKS.glob("[a-z]*.py")):
        found[path.stem] = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]
    return found


def main():
    known = checks()
    parser = argparse.ArgumentParser(prog="./dev check", description=__doc__.split("\n\n")[1])
    parser.add_argument("names", nargs="*", metavar="NAME")
    given = sys.argv[1:]
    first_option = next((at for at, argument in enumerate(given) if argument.startswith("-")), len(given))
    # Options before a name are ours: there is only --help.
    names, options = (given[:first_option], given[first_option:]) if first_option else (parser.parse_args().names, [])
    if not names:
        for name, what in known.items():
            print(f"{name:<20} {what}")
        return 0
    names = list(known) if names == ["all"] else names
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"no check is called {' or '.join(unknown)}; there are {', '.join(known)}")
    if options and len(names) != 1:
        parser.error(f"{options[0]} is an option of one check; there are {len(names)}")
    failed = []
    for name in names:
        say(f"check {name}")
        if subprocess.run([sys.executable, CHECKS / f"{name}.py", *options], cwd=ROOT, check=False).returncode != 0:
            failed.append(name)
    if len(names) > 1:
        print(f"{len(names) - len(failed)} of {len(names)} checks passed" +
              (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
