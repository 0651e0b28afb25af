"""What a binary needs from Debian: its shared libraries, their modules and their copyright files.

They are taken from the packages that are installed here, the ones that the binary was built and tested
with, after their checksums were compared with what the packages declare. Nothing is downloaded, and no
shell, package manager or other program gets into the image. The alternative, a whole system by
mmdebstrap, is 200 MB of files that Baton never opens and scanners have to report on.
"""

import hashlib
import os
import pathlib
import re
import subprocess

from builder import Unusable, output_of

DPKG_INFO = pathlib.Path("/var/lib/dpkg/info")
# Loaded at run time by name, so that no library asks for them: UCX's transports, RDMA's drivers.
MODULE_PACKAGES = {
    "libucx0": r"/ucx/[^/]+\.so[^/]*$",
    "ibverbs-providers": r"(/lib[^/]+\.so[^/]*|\.driver)$",
}
# Fields of a package's status that scanners read.
STATUS_FIELDS = ("Package", "Status", "Architecture", "Multi-Arch", "Source", "Version", "Section", "Priority",
                 "Maintainer", "Homepage", "Description")


def libraries_of(*objects, without=None, complete=True):
    """Paths, as the loader names them, of all that `objects` need, the loader included; of no file below `without`.

    Unusable names what the loader does not find, unless that is not to be `complete`.
    """
    found = set()
    for path in objects:
        for line in output_of("ldd", path).splitlines():
            match = re.match(r"\s*(?:\S+ => )?(/\S+) \(0x", line)
            if complete and "not found" in line:
                raise Unusable(f"{path}: {line.strip()}")
            if match and not (without and without in pathlib.Path(match.group(1)).resolve().parents):
                found.add(match.group(1))
    return sorted(found)


def owners_of(paths):
    """{path: (package, path as the package declares it)} of files; of those that no package owns, Unusable."""
    spellings = {}
    for path in paths:
        spellings[path] = path
        # Before the merge of /lib into /usr/lib packages declared either.
        if path.startswith("/usr/"):
            spellings[path[4:]] = path
    done = subprocess.run(["dpkg-query", "-S", *spellings], capture_output=True, text=True, check=False)
    owners = {}
    for line in done.stdout.splitlines():
        packages, _, declared = line.partition(": ")
        if declared in spellings and not line.startswith("diversion "):
            owners[spellings[declared]] = (packages.split(",")[0].strip(), declared)
    missing = sorted(set(paths) - set(owners))
    if missing:
        raise Unusable(f"no Debian package owns {', '.join(missing)}")
    return owners


def declared_checksums(package):
    """{path without its first slash: MD5}."""
    for name in (package, package.partition(":")[0]):
        path = DPKG_INFO / f"{name}.md5sums"
        if path.exists():
            return {line[34:]: line[:32] for line in path.read_text(encoding="utf-8").splitlines()}
    raise Unusable(f"{package} has no checksums in {DPKG_INFO}")


def verify(package, declared, path, checksums):
    """Corruption and local patches are found so; it is no defence against who can write both files."""
    expected = checksums.get(declared.lstrip("/"))
    actual = hashlib.md5(pathlib.Path(path).read_bytes(), usedforsecurity=False).hexdigest()
    if expected != actual:
        raise Unusable(f"{path} is not what package {package} installed (MD5 {actual}, declared {expected})")


def modules():
    """Paths of the modules that MODULE_PACKAGES names, links among them included."""
    found = []
    for package, pattern in MODULE_PACKAGES.items():
        files = [line for line in output_of("dpkg-query", "-L", package).splitlines() if re.search(pattern, line)]
        if not files:
            raise Unusable(f"package {package} has no modules that match {pattern}")
        found += files
    return sorted(found)


def status_of(package):
    """What scanners look for in var/lib/dpkg/status.d of images without a package manager."""
    lines, keep = [], False
    for line in output_of("dpkg-query", "-s", package).splitlines():
        if not line.startswith(" "):
            keep = line.split(":")[0] in STATUS_FIELDS
        if keep:
            lines.append(line)
    return "\n".join(lines) + "\n"


def add_packages_files(tree, objects, without=None):
    """Adds what `objects` and the modules need, but nothing below `without`; returns the packages it came from."""
    loaded = modules()
    wanted = [*libraries_of(*objects, *(path for path in loaded if ".so" in path), without=without), *loaded]
    files = {os.path.realpath(path) for path in wanted}
    owners = owners_of(files)
    checksums = {package: declared_checksums(package) for package, _ in owners.values()}
    for path, (package, declared) in sorted(owners.items()):
        if not declared.startswith("/etc/"):  # Configuration may be edited and has no checksum.
            verify(package, declared, path, checksums[package])
        tree.file(path, path, 0o755 if ".so" in path else 0o644)
    for path in wanted:
        folder = os.path.realpath(os.path.dirname(path))
        name, real = os.path.join(folder, os.path.basename(path)), os.path.realpath(path)
        if name != real:
            tree.link(name, os.path.relpath(real, folder))
    packages = sorted({package for package, _ in owners.values()} | {"base-files"})
    for package in packages:
        name = package.partition(":")[0]
        tree.file(f"/usr/share/doc/{name}/copyright", f"/usr/share/doc/{name}/copyright")
        tree.text(f"/var/lib/dpkg/status.d/{name}", status_of(package))
    tree.file("/usr/lib/os-release", "/usr/lib/os-release")
    tree.link("/etc/os-release", "../usr/lib/os-release")
    return packages
