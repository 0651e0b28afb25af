"""The packages that docs/design.md says each package uses are those that its files include."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
EVERYWHERE = {"base", "types"}  # Used by all, so not listed.
TEST_ONLY = re.compile(r"_test\.cc$|/testing/|fixture|benchmark|fuzz")
ROW = re.compile(r"^([a-z,]+) ([a-z,]+)$", re.MULTILINE)


def stated():
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    block = re.search(r"packages use:\n\n```\n(.*?)```", design, re.DOTALL).group(1)
    rows = ROW.findall(block)
    assert len(rows) == len(block.splitlines()), block
    return {package: set(used.split(",")) for packages, used in rows for package in packages.split(",")}


def included():
    uses = {}
    for name in subprocess.run(["git", "ls-files", "common", "services"], cwd=ROOT, capture_output=True, text=True,
                               check=True).stdout.splitlines():
        if not name.endswith((".cc", ".h")) or TEST_ONLY.search(name):
            continue
        package = name.split("/")[1]
        found = re.findall(r'#include "(?:common|services)/([^/"]+)/', (ROOT / name).read_text(encoding="utf-8"))
        uses.setdefault(package, set()).update(set(found) - {package} - EVERYWHERE)
    return {package: used for package, used in uses.items() if used and package not in EVERYWHERE}


def test_what_the_design_says_of_packages_holds():
    assert stated() == included()


def test_no_package_uses_itself_by_way_of_others():
    uses, free = included(), set()
    while left := {package: used for package, used in uses.items() if package not in free}:
        leaves = {package for package, used in left.items() if not used - free - (used - uses.keys())}
        assert leaves, f"a cycle among {sorted(left)}"
        free |= leaves
