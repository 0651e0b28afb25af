"""Which C++ sources have been linted clean as they are now: tools/lint/clean.txt and its rules.

A line is `path own closure`. `own` is the hash of the file and of what decides how it is linted
(.clang-tidy, the aspect's flags, the tool's version); `closure`, which only sources have, is the hash of
the `own` of the source and of every file of the repository that it includes, directly or not. Headers
and .proto files have lines so that it can be said which of them has changed. Comments, line breaks and
the names of included headers are left out of `own`: our checks read NOLINT and names of arguments in them
and nothing else. clang-format reads all of them, and runs on every file every time.

The list is a set: a file is clean if any of its lines is the one that it would have now. So two branches
that both add lines merge without a conflict (`merge=union` in .gitattributes), and what they say stays
true; `./dev check lint` leaves one line per file.
"""

import dataclasses
import functools
import hashlib
import pathlib
import re
import subprocess

from cpp_text import without_comments

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLEAN_LIST = ROOT / "tools" / "lint" / "clean.txt"
FOLDERS = ("common/", "services/", "tests/", "tools/", "examples/")
CONFIGURATION = (".clang-tidy", "tools/clang_tidy.bzl")
INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
IMPORT = re.compile(rb'^\s*import\s+"([^"]+)"', re.MULTILINE)
# Sources whose own text is linted already but whose headers have changed: at most this many a run.
NEIGHBOURS_MAX = 12


def digest(*parts):
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()[:20]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is to be linted, and why."""
    changed: list      # Sources whose own text is not on the list.
    neighbours: list   # Sources that stand for headers that have changed.
    left: list         # The other sources whose headers have changed: `./dev check lint` has them.

    @property
    def sources(self):
        return sorted(self.changed + self.neighbours)


def linted_text(text):
    """What findings in a file depend on: its text without comments, line breaks and the names of our own headers.

    NOLINT and /*name=*/ stay. Which headers it has is part of the closure.
    """
    kept = without_comments(text, kept=lambda comment: comment.startswith(b"/*") or b"NOLINT" in comment)
    return b" ".join(INCLUDE.sub(b"", kept).split())


class Tree:
    """The sources as they are on disk, with their hashes."""

    def __init__(self):
        version = subprocess.run(["clang-tidy", "--version"], check=True, capture_output=True).stdout
        number = re.search(rb"version (\S+)", version)
        self._configuration = [number.group(1) if number else version]
        self._configuration += [(ROOT / path).read_bytes() for path in CONFIGURATION]
        listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.cc"],
                                cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
        self.sources = sorted(path for path in set(listed)
                              if path.startswith(FOLDERS) and (ROOT / path).exists())

    @functools.lru_cache(maxsize=None)
    def own(self, path):
        return digest(*self._configuration, linted_text((ROOT / path).read_bytes()))

    @functools.lru_cache(maxsize=None)
    def includes(self, path):
        """The files of the repository that `path` names; what does not exist here is the system's."""
        text = (ROOT / path).read_bytes()
        names = (IMPORT if path.endswith(".proto") else INCLUDE).findall(text)
        found = []
        for name in map(bytes.decode, names):
            name = re.sub(r"(\.grpc)?\.pb\.h$", ".proto", name)
            if (ROOT / name).is_file():
                found.append(name)
        return tuple(found)

    @functools.lru_cache(maxsize=None)
    def closure_files(self, path):
        seen, waiting = {path}, [path]
        while waiting:
            for name in self.includes(waiting.pop()):
                if name not in seen:
                    seen.add(name)
                    waiting.append(name)
        return frozenset(seen)

    def closure(self, path):
        return digest(*(f"{name} {self.own(name)}".encode() for name in sorted(self.closure_files(path))))

    def line(self, path):
        return f"{path} {self.own(path)}" + (f" {self.closure(path)}" if path.endswith(".cc") else "")

    def lines(self, sources):
        """The lines that say that `sources` are clean, and what they include with them."""
        files = set().union(*(self.closure_files(source) for source in sources))
        return {self.line(path) for path in files if not path.endswith(".cc") or path in sources}


def read():
    if not CLEAN_LIST.exists():
        return set()
    return {line for line in CLEAN_LIST.read_text(encoding="ascii").splitlines() if line}


def write(lines):
    CLEAN_LIST.write_text("".join(line + "\n" for line in sorted(lines)), encoding="ascii")


def add(tree, sources):
    """Notes that `sources` are clean, in place of what the list said of the same files."""
    new = tree.lines(sources)
    paths = {line.split()[0] for line in new}
    write({line for line in read() if line.split()[0] not in paths} | new)


def plan(tree):
    """All sources whose own text is new, and of those whose headers alone are, a few near ones.

    A header that half of the tree includes would otherwise make every run lint half of the tree, for
    findings that are nearly always in the header itself, which any of its users shows. Each changed
    header is read by at least one source; the rest is for `./dev check lint`.
    """
    listed = read()
    own = {" ".join(line.split()[:2]) for line in listed}
    changed = [source for source in tree.sources if f"{source} {tree.own(source)}" not in own]
    stale = [source for source in tree.sources if source not in changed and tree.line(source) not in listed]
    seen = set().union(*(tree.closure_files(source) for source in changed))
    headers = {name for source in stale for name in tree.closure_files(source)
               if name != source and f"{name} {tree.own(name)}" not in own}

    def distance(source, header):
        stem, folder = header.rsplit(".", 1)[0], header.rsplit("/", 1)[0]
        return (not source.startswith(stem), not source.startswith(folder + "/"), len(tree.closure_files(source)))

    neighbours = []
    for header in sorted(headers - seen):
        users = [source for source in stale if header in tree.closure_files(source)]
        if not any(user in neighbours for user in users):
            neighbours.append(min(users, key=lambda source: distance(source, header)))
    others = [source for source in stale if source not in neighbours]
    others.sort(key=lambda source: min((distance(source, header) for header in headers
                                        if header in tree.closure_files(source)), default=(True, True, 0)))
    room = max(0, NEIGHBOURS_MAX - len(neighbours))
    return Plan(changed, neighbours + others[:room], others[room:])
