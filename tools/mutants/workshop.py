"""Builds mutants: Bazel's objects of the sources as they are, and one compiler call for each source that changes.

Rejected: `bazel build` for each mutant, which costs seconds of analysis, sandboxes and a link of every test. Here
all that may be mutated is one shared library, the tests and the simulation are linked against it once, and a mutant
is one object compiled anew and one link of that library: two to four seconds. The compiler's flags are Bazel's own,
-O2 too: at -O1 a source compiles a quarter faster, but the simulation runs slower, and fewer mutants are recognised
as equivalent by their object code.

Everything happens in a folder of its own on copies of sources and objects, so that a checkout is never touched and
may be edited meanwhile.
"""

import fcntl
import filecmp
import hashlib
import json
import pathlib
import re
import shutil
import subprocess

from mutations import apply_all

# Warnings would only reject mutants that a tired author's editor shows in yellow; these two are undefined behaviour.
ERRORS = ("-Wreturn-type", "-Werror=return-type", "-Wuninitialized", "-Werror=uninitialized")
LIBRARY = "libcores.so"
SIMULATION = "//tests/sim:sim"
TREES = ("common", "services", "tests/sim")
_OBJECT = re.compile(r"bazel-out/[^/]+/bin/(.+)/_objs/([^/]+)/[^/]+\.o$")
_INCLUDE = re.compile(rb'^#include "([^"]+)"', re.MULTILINE)


class BuildError(Exception):
    """The tree as it is can't be built or passes no tests: nothing can be said of mutants."""


def alone(directory):
    """An open lock, to be kept: no other run works in `directory` as long as this process lives."""
    directory.mkdir(parents=True, exist_ok=True)
    lock = open(directory / "lock", "w", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise BuildError(f"another run works in {directory}; --directory gives this one its own") from error
    return lock


def bazel_in(root, flags):
    """What a Workshop runs Bazel with. `flags`: the compiler's, of every build."""
    def run(command, *arguments):
        shown = ["--noshow_progress"] if command != "build" else ["--noshow_loading_progress", "--curses=no",
                                                                  "--show_progress_rate_limit=30"]
        shown += flags if command in ("build", "aquery", "info") else ()
        done = subprocess.run(["bazel", command, *shown, *arguments], cwd=root, check=False, text=True,
                              stdout=subprocess.PIPE, stderr=None if command == "build" else subprocess.PIPE)
        if done.returncode != 0:
            raise BuildError(f"bazel {command} failed" + (f": {done.stderr[-1000:]}" if done.stderr else ""))
        return done.stdout
    return run


class Workshop:
    """The build of the unmutated tree, read-only after `prepare`, and what a Bench needs to know of it."""

    def __init__(self, root, directory, bazel):
        """`bazel(command, *arguments)` runs Bazel in `root` and gives its standard output."""
        self.root, self.directory, self._bazel = root, pathlib.Path(directory), bazel
        self.sources = self.directory / "sources"
        self.objects = self.directory / "objects"
        self.base = self.directory / "base"
        self.commands = {}  # {source: the compiler's arguments}
        self.object_of = {}  # {source: object, relative to `objects`}
        self.executables = {}  # {label: its own objects}
        self.library = []  # Objects that are nobody's own.
        self.libraries = []  # -l flags of everything together.
        self.simulated = set()  # Sources that the simulation's binary contains.
        self.fingerprint = ""
        self.originals = None  # Folder of unmutated objects as a Bench compiles them.

    # ---- The tree as it is ----

    def prepare(self, packages, simulated):
        labels = []
        if packages:
            labels = self._bazel("query", "tests(" + " + ".join(f"//{p}:all" for p in packages) + ")").split()
        if simulated:
            labels.append(SIMULATION)
        # Somebody may edit the checkout, or change its branch, while it is built.
        for _ in range(3):
            self._copy_sources()
            self._bazel("build", *labels)
            if self._sources_are_those_of_the_checkout():
                break
        else:
            raise BuildError("the checkout changes faster than it is built")
        execution_root = pathlib.Path(self._bazel("info", "execution_root").strip())
        output_base = pathlib.Path(self._bazel("info", "output_base").strip())
        (self.sources / "bazel-out").symlink_to(execution_root / "bazel-out")
        (self.sources / "external").symlink_to(output_base / "external")
        self._read_actions(labels, execution_root)
        self._link_all()
        self.fingerprint = self._fingerprint()
        self.originals = self.directory / "originals" / self.fingerprint
        if not self.originals.exists():
            shutil.rmtree(self.originals.parent, ignore_errors=True)
            self.originals.mkdir(parents=True)

    def _copy_sources(self):
        shutil.rmtree(self.sources, ignore_errors=True)
        for path in self._checkout():
            (self.sources / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / path, self.sources / path)

    def _sources_are_those_of_the_checkout(self):
        copied = {path.relative_to(self.sources) for path in self.sources.rglob("*") if path.is_file()}
        return copied == set(self._checkout()) and all(
            filecmp.cmp(self.root / path, self.sources / path, shallow=False) for path in copied)

    def _checkout(self):
        return [path.relative_to(self.root) for tree in TREES for path in (self.root / tree).rglob("*")
                if path.suffix in (".cc", ".h")]

    def _read_actions(self, labels, execution_root):
        query = f'mnemonic("CppCompile|CppLink", deps(set({" ".join(labels)})))'
        actions = json.loads(self._bazel("aquery", "--output=jsonproto", query))["actions"]
        own = {label: [] for label in labels}
        system, simulated = {}, set()
        shutil.rmtree(self.objects, ignore_errors=True)
        for action in actions:
            arguments = action["arguments"]
            if action["mnemonic"] == "CppLink":
                # Baton's own libraries carry their package's name, with _S for a slash.
                system.update(dict.fromkeys(a for a in arguments if a.startswith("-l") and "_S" not in a))
                if any(a.endswith("/tests/sim/sim") for a in arguments):
                    simulated = {a for a in arguments if a.endswith(".o")}
                continue
            source, made = arguments[arguments.index("-c") + 1], arguments[arguments.index("-o") + 1]
            if source.startswith("external/"):  # Of Bazel's own tools.
                continue
            place = _OBJECT.fullmatch(made)
            if place is None or not (self.sources / source).is_file():
                raise BuildError(f"{source}, of which {made} is made, is not in {', '.join(TREES)}")
            label = f"//{place.group(1)}:{place.group(2)}"
            self.commands[source] = _compile_flags(arguments)
            self.object_of[source] = made
            (self.objects / made).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(execution_root / made, self.objects / made)
            if label not in own and label.startswith("//tests/"):
                label = SIMULATION
            own.get(label, self.library).append(made)
        self.executables = own
        self.libraries = [flag for flag in system if not flag.startswith("-lgtest")]
        self.simulated = {source for source, made in self.object_of.items() if made in simulated}

    def _link_all(self):
        shutil.rmtree(self.base, ignore_errors=True)
        self.base.mkdir(parents=True)
        self.link_library(self.base, {})
        for label in self.executables:
            self.link_executable(label, self.base, {})

    def link_library(self, folder, replaced):
        """`replaced`: {object: path of the one to take instead}."""
        _run(["g++", "-shared", "-fuse-ld=gold", "-o", folder / LIBRARY, *self._paths(self.library, replaced),
              *self.libraries])

    def link_executable(self, label, folder, replaced):
        more = [] if label == SIMULATION else ["-lgtest_main", "-lgtest"]
        _run(["g++", "-fuse-ld=gold", "-o", folder / file_name(label), *self._paths(self.executables[label], replaced),
              f"-L{self.base}", "-lcores", *more, *self.libraries])

    def _paths(self, objects, replaced):
        return [replaced.get(o, self.objects / o) for o in objects]

    def _fingerprint(self):
        """Of everything that a verdict on a mutant depends on."""
        digest = hashlib.sha256()
        for made in sorted(self.object_of.values()):
            digest.update((self.objects / made).read_bytes())
        for source in sorted(self.commands):
            digest.update(json.dumps([source, self.commands[source]]).encode())
        return digest.hexdigest()[:16]

    def flags_of(self, path):
        """libclang's, for a source or a header."""
        some = self.commands.get(path) or next(flags for source, flags in sorted(self.commands.items())
                                               if pathlib.Path(source).parent == pathlib.Path(path).parent)
        keep = [flag for flag in some if flag.startswith(("-std=", "-D", "-I"))]
        for option in ("-iquote", "-isystem"):
            keep += [part for at, flag in enumerate(some) if flag == option for part in (option, some[at + 1])]
        return keep

    def includes(self, path):
        """The files of the tree that `path` includes, directly or not, and itself."""
        seen, todo = set(), [path]
        while todo:
            current = todo.pop()
            if current in seen or not (self.sources / current).is_file():
                continue
            seen.add(current)
            todo += [name.decode() for name in _INCLUDE.findall((self.sources / current).read_bytes())]
        return seen

    def users(self, path):
        """The sources whose objects change with `path`."""
        if path in self.commands:
            return [path]
        return [source for source in sorted(self.commands) if path in self.includes(source)]


class Bench:
    """A copy of the sources in which one mutant at a time is built. Of one thread."""

    def __init__(self, workshop, name):
        self._shop = workshop
        self.folder = workshop.directory / name
        self._tree = self.folder / "tree"
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(workshop.sources, self._tree, symlinks=True)

    def build(self, *mutations):
        """Builds the mutant that all of them make into `folder`: "ok", "equivalent" if its object code is the
        original's, or "refused" by the compiler."""
        made = self.folder / "made"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        paths = sorted({mutation.path for mutation in mutations})
        users = sorted({user for path in paths for user in self._shop.users(path)})
        before = {source: self._original(source) for source in users}
        originals = {path: (self._tree / path).read_bytes() for path in paths}
        replaced = {}
        try:
            for path, original in originals.items():
                (self._tree / path).write_bytes(apply_all([m for m in mutations if m.path == path], original))
            for number, source in enumerate(users):
                if not self._compile(source, made / f"{number}.o"):
                    return "refused"
                if (made / f"{number}.o").read_bytes() != before[source].read_bytes():
                    replaced[self._shop.object_of[source]] = made / f"{number}.o"
        finally:
            for path, original in originals.items():
                (self._tree / path).write_bytes(original)
        if not replaced:
            return "equivalent"
        self._shop.link_library(made, replaced)
        for label, objects in self._shop.executables.items():
            if any(o in replaced for o in objects):
                self._shop.link_executable(label, made, replaced)
        return "ok"

    def program(self, label):
        """(executable, folder of its library) of the mutant that was built last."""
        own = self.folder / "made" / file_name(label)
        return (own if own.exists() else self._shop.base / file_name(label)), self.folder / "made"

    def _original(self, source):
        """The unmutated object as this compiler call makes it: Bazel's own may differ in a path or a flag."""
        at = self._shop.originals / (source.replace("/", "%") + ".o")
        if not at.exists():
            new = self.folder / "original.o"
            if not self._compile(source, new):
                raise BuildError(f"{source} does not compile as it is")
            new.rename(at)
        return at

    def _compile(self, source, output):
        return subprocess.run([*self._shop.commands[source], "-c", source, "-o", output], cwd=self._tree,
                              check=False, capture_output=True, start_new_session=True).returncode == 0


def file_name(label):
    return label.removeprefix("//").replace("/", "_").replace(":", "_")


def _compile_flags(arguments):
    """Without output, dependencies and warnings."""
    flags, skip = [], 0
    for argument in arguments:
        if skip:
            skip -= 1
        elif argument in ("-c", "-o", "-MF"):
            skip = 1
        elif argument != "-MD" and not argument.startswith("-W") or argument.startswith("-Wno-builtin"):
            flags.append(argument)
    return [*flags, *ERRORS]


def _run(command):
    done = subprocess.run(command, check=False, capture_output=True, text=True, start_new_session=True)
    if done.returncode != 0:
        raise BuildError(f"{command[0]}: {done.stderr.strip()[-2000:]}")
