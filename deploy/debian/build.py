"""Builds Debian packages of what Bazel has built: baton, baton-model-austen, baton-torch.

    ./dev package [--version VERSION] [--out DIR]

Dependencies come from dpkg-shlibdeps, maintainer scripts from debhelper, and the manual page and the shells'
completion from the table of options. The packages' paths are printed, one a line.
"""

import argparse
import email.utils
import os
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools/dev"))

from build_facts import commit_seconds  # noqa: E402
from builder import Unusable, exit_code, output_of  # noqa: E402
from debian_tools import missing_tools  # noqa: E402

BATON = ROOT / "bazel-bin/services/baton/baton"
TORCH_PLUGIN = ROOT / "bazel-bin/common/engine/torch/libbaton_torch.so"
GENERATE_DOCS = ROOT / "bazel-bin/tools/docs/generate_docs"
MODEL = ROOT / "models/austen"
MAINTAINER = "Baton's maintainers <maintainers@baton.invalid>"
TOOLS = {"dh": "debhelper", "dpkg-buildpackage": "dpkg-dev"}
# What --drain-timeout-ms asks for beyond itself: the time to end what is left and to leave.
STOP_MARGIN_MS = 10_000


def option_default(flag):
    """From the generated table, which a test holds to the options."""
    row = re.search(rf"^- `--{flag}`[^(]*\(=(\d+);", (ROOT / "docs/options.md").read_text(encoding="utf-8"), re.M)
    if row is None:
        raise Unusable(f"docs/options.md has no number as default of --{flag}")
    return int(row.group(1))


def unit_text(name):
    folder = HERE / "systemd"
    stop_ms = option_default("drain-timeout-ms") + option_default("drain-settle-ms")
    text = (folder / name).read_text(encoding="utf-8")
    for part in ("common", "worker"):
        text = text.replace(f"@{part.upper()}@\n", (folder / f"{part}.part").read_text(encoding="utf-8"))
    return text.replace("@STOP_SECONDS@", str(-(-(stop_ms + STOP_MARGIN_MS) // 1000)))


def put(source, target, mode=0o644):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def write(text, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def lay_out(stage):
    """What each package installs, under stage/, and what debhelper puts into place itself."""
    baton = stage / "baton"
    put(BATON, baton / "usr/bin/baton", 0o755)
    put(HERE / "etc/baton.yaml", baton / "etc/baton/baton.yaml")
    write(output_of(BATON, "completion", "bash"), baton / "usr/share/bash-completion/completions/baton")
    write(output_of(BATON, "completion", "zsh"), baton / "usr/share/zsh/vendor-completions/_baton")
    for unit in sorted((HERE / "systemd").glob("*.service")):
        write(unit_text(unit.name), baton / "lib/systemd/system" / unit.name)
    shutil.copytree(HERE / "examples", stage / "examples")
    with open(HERE / "baton.1.in", encoding="utf-8") as template:
        write(output_of(GENERATE_DOCS, "man", stdin=template), stage / "baton.1")

    for path in sorted(MODEL.iterdir()):
        folder = "usr/share/doc/baton-model-austen" if path.suffix in (".md", ".txt") else \
            "usr/share/baton/models/austen"
        put(path, stage / "model" / folder / path.name)

    put(TORCH_PLUGIN, stage / "torch/usr/lib/baton/libbaton_torch.so")


def changelog(version, seconds):
    return (f"baton ({version}) bookworm; urgency=medium\n\n"
            f"  * Built from the sources of this version.\n"
            f"  * What changed is in release-notes.md.gz, beside this file.\n\n"
            f" -- {MAINTAINER}  {email.utils.formatdate(seconds)}\n")


def build(version, out):
    """The packages' paths."""
    work = ROOT / ".cache" / "package"
    shutil.rmtree(work, ignore_errors=True)
    source = work / "baton"
    lay_out(source / "stage")
    shutil.copytree(HERE / "package", source / "debian")
    put(ROOT / "CHANGELOG.md", source / "stage/docs/release-notes.md")
    seconds = commit_seconds()
    write(changelog(version, seconds), source / "debian/changelog")
    environment = dict(os.environ, SOURCE_DATE_EPOCH=str(seconds), LC_ALL="C.UTF-8")
    output_of("dpkg-buildpackage", "--build=binary", "--unsigned-changes", "--unsigned-source", cwd=source,
              env=environment)
    out.mkdir(parents=True, exist_ok=True)
    packages = []
    for path in sorted(work.glob("*.deb")):
        packages.append(out / path.name)
        shutil.move(path, packages[-1])
    return packages


def parse_arguments():
    parser = argparse.ArgumentParser(prog="./dev package", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", help="of the packages (default: the program's)")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "dist", help="directory (default dist)")
    return parser.parse_args()


def print_packages(arguments):
    missing = missing_tools(TOOLS)
    if missing:
        raise Unusable(missing)
    version = arguments.version or output_of(BATON, "--version").split()[-1]
    for path in build(version, arguments.out.resolve()):
        print(path)


def main():
    arguments = parse_arguments()
    return exit_code("./dev package", lambda: print_packages(arguments))


if __name__ == "__main__":
    sys.exit(main())
