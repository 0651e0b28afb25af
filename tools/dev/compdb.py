"""`./dev compdb`: writes compile_commands.json for clangd, from what Bazel would run.

Nothing is compiled. Generated headers exist after a build; run it again when targets or flags change.
"""

import json
import subprocess
import sys

from bazel import PACKAGES, ROOT, compiler_flags

# GCC's that clang doesn't know, and what would show clang's own warnings as errors.
NOT_FOR_CLANG = ("-fno-canonical-system-headers", "-Wunused-but-set-parameter", "-Wno-free-nonheap-object",
                 "-Werror")


def output_of(*command):
    return subprocess.run(["bazel", *command], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def without_precompiled(arguments):
    """clangd can't read GCC's, and should see what a source includes itself."""
    at = arguments.index("-include") if "-include" in arguments else len(arguments)
    return arguments[:at] + arguments[at + 2:]


def main():
    output_base = output_of("info", "output_base").strip()
    query = f'mnemonic("CppCompile", {" + ".join(PACKAGES)})'
    actions = json.loads(output_of("aquery", "--noshow_progress", "--output=jsonproto", *compiler_flags(), query))
    entries = []
    for action in actions["actions"]:
        arguments = [argument for argument in without_precompiled(action["arguments"])
                     if argument not in NOT_FOR_CLANG]
        # `bazel-out` is a link in the tree, `external` is not.
        arguments = [f"{output_base}/{argument}" if argument.startswith("external/") else argument
                     for argument in arguments]
        source = arguments[arguments.index("-c") + 1]
        if (ROOT / source).is_file():
            entries.append({"directory": str(ROOT), "file": source, "arguments": arguments})
    entries.sort(key=lambda entry: entry["file"])
    with open(ROOT / "compile_commands.json", "w", encoding="utf-8") as file:
        json.dump(entries, file, indent=1)
    print(f"compile_commands.json: {len(entries)} sources")
    return 0


if __name__ == "__main__":
    sys.exit(main())
