"""The same seed is the same run under GCC and clang, optimised and under sanitizers: hash for hash.

    ./dev check sim_hash [--seeds N] [--first SEED] [--variants gcc-opt,clang-opt,gcc-asan,clang-asan]

What differs between compilers is what the language leaves open: in which order a call's arguments are evaluated,
how long a container keeps an order, what a distribution of the library draws. A simulation that leans on any of it
replays only where it was built. Each variant is compiled from the sources, and linked with the libraries, that Bazel
names for //tests/sim:sim, apart from Bazel's own output; a compiler that is not there is skipped. Clang's runtime of
the sanitizers is a package of its own, which is installed when it is missing.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))

from debian_tools import missing_unless  # noqa: E402
from tally import Tally, say  # noqa: E402

COMMON = ["-std=c++20", "-DNDEBUG", "-I", str(ROOT)]
PROGRAM = "//tests/sim:sim"
SANITIZED = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
VARIANTS = {
    "gcc-opt": (["g++"], ["-O2"]),
    "clang-opt": (["clang++", "clang++-14"], ["-O2"]),
    "gcc-asan": (["g++"], SANITIZED),
    "clang-asan": (["clang++", "clang++-14"], SANITIZED),
}


def main():
    parser = argparse.ArgumentParser(prog="sim_hash", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    names = options.variants.split(",")
    if unknown := [name for name in names if name not in VARIANTS]:
        parser.error(f"no variant is called {' or '.join(unknown)}; there are {', '.join(VARIANTS)}")
    tally = Tally()
    sources = sim_sources()
    hashes = {}
    with tempfile.TemporaryDirectory(prefix="baton-sim-hash-") as directory:
        for name in names:
            compilers, flags = VARIANTS[name]
            compiler = next((path for path in map(shutil.which, compilers) if path), None)
            if compiler is None:
                tally.skip(name, f"no {' or '.join(compilers)} here")
                continue
            if why := lacks_runtime(compiler, flags, directory):
                tally.skip(name, f"{compiler} has no runtime for {' '.join(flags)}: {why}")
                continue
            say(f"{name}: {len(sources)} sources")
            program = build(compiler, flags, sources, pathlib.Path(directory) / name, options.jobs)
            hashes[name] = run(program, options) if program else None
            tally.step(f"{name} builds and runs", hashes[name] is not None)
    compare({name: lines for name, lines in hashes.items() if lines}, tally)
    return tally.finish()


def query(expression, *more):
    done = subprocess.run(["bazel", "query", "--noshow_progress", expression, *more], cwd=ROOT, check=True,
                          capture_output=True, text=True)
    return done.stdout


def sim_sources():
    """Every source file that the program is built of."""
    found = query(f"kind('source file', deps({PROGRAM})) intersect //...:*").split()
    labels = [line for line in found if line.startswith("//") and line.endswith(".cc")]
    return [label.removeprefix("//").replace(":", "/").removeprefix("/") for label in sorted(labels)]


def libraries():
    """The link flags of every system library that it needs. A list of our own would be one library short some day."""
    rules = query(f"kind('cc_library', filter('^@system//', deps({PROGRAM})))", "--output=build")
    return [flag for found in re.findall(r"linkopts = \[(.*?)\]", rules) for flag in re.findall(r'"(.*?)"', found)]


def lacks_runtime(compiler, flags, directory):
    """Why nothing can be built with these flags; empty if it can, perhaps since what was missing has been installed."""
    if "clang" in pathlib.Path(compiler).name:
        return missing_unless(lambda: links(compiler, flags, directory), "libclang-rt-14-dev")
    return "" if links(compiler, flags, directory) else "nothing links"


def links(compiler, flags, directory):
    """Whether the compiler can build anything at all with these flags: sanitizers need headers and a runtime that are
    packages of their own for clang."""
    source = pathlib.Path(directory) / "empty.cc"
    include = "#include <sanitizer/asan_interface.h>\n" if flags is SANITIZED else ""
    source.write_text(f"{include}int main() {{}}\n", encoding="utf-8")
    done = subprocess.run([compiler, *flags, source, "-o", source.with_suffix("")], check=False, capture_output=True)
    return done.returncode == 0


def build(compiler, flags, sources, directory, jobs):
    """The program, or None if it does not build; what the compiler says is on stderr."""
    directory.mkdir(parents=True)
    command = [compiler, *COMMON, *flags]

    def compile_one(source):
        target = directory / (source.replace("/", "_") + ".o")
        code = subprocess.run([*command, "-c", ROOT / source, "-o", target], check=False).returncode
        if code != 0:
            print(f"{source} does not compile: exit status {code}", flush=True)
        return target, code

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(compile_one, sources))
    if any(code != 0 for _, code in objects):
        return None
    program = directory / "sim"
    linked = subprocess.run([compiler, *flags, *[target for target, _ in objects], "-o", program,
                             *libraries()], check=False)
    if linked.returncode != 0:
        print(f"it does not link: exit status {linked.returncode}", flush=True)
    return program if linked.returncode == 0 else None


def run(program, options):
    done = subprocess.run([program, f"--seed={options.first}", f"--seeds={options.seeds}", "--hashes"], check=False,
                          stdout=subprocess.PIPE, text=True)
    lines = done.stdout.splitlines()
    if done.returncode != 0:  # A seed has failed, or a sanitizer has found something, and has said what on stderr.
        print("\n".join([f"it ends with exit status {done.returncode} after:", *lines[-5:]]), flush=True)
        return None
    return [line for line in lines if line.startswith("hash ")]


def compare(hashes, tally):
    """Each variant with the first one."""
    if len(hashes) < 2:
        tally.skip("comparison", "fewer than two variants ran")
        return
    first, *others = hashes
    for other in others:
        pairs = list(zip(hashes[first], hashes[other], strict=False))
        same = len(hashes[first]) == len(hashes[other]) and all(one == two for one, two in pairs)
        tally.step(f"{first} and {other}: {len(pairs)} seeds alike", same)
        for one, two in [pair for pair in pairs if pair[0] != pair[1]][:5]:
            print(f"{first}: {one}\n{other}: {two}")


if __name__ == "__main__":
    sys.exit(main())
