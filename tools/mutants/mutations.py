"""What a mutation is, and what can be said of one without a compiler: its text, its diff, its place in a sample."""

import dataclasses
import difflib
import hashlib
import random


@dataclasses.dataclass(frozen=True)
class Mutation:
    """`source[begin:end]` of the file at `path` becomes `text`. Offsets count bytes of UTF-8."""

    path: str
    begin: int
    end: int
    text: str
    kind: str  # As in KINDS.
    function: str  # That it lies in; "" for a constant of the file.

    @property
    def site(self):
        """Mutations of one site share it: a sample takes at most one of them."""
        return (self.path, self.begin, self.end)

    def apply(self, source):
        """The mutated source, in bytes. It has as many lines as the original, so that line numbers, which
        checks compile in, don't make the object code of an equivalent mutant another one."""
        old = source[self.begin:self.end]
        new = self.text.encode()
        return source[:self.begin] + new + b"\n" * (old.count(b"\n") - new.count(b"\n")) + source[self.end:]

    def line(self, source):
        return source.count(b"\n", 0, self.begin) + 1

    def lines(self, source):
        """(before, after): the touched lines with their white space made even. They, and not a line number,
        name a mutation in equivalent.yaml."""
        first = source.rfind(b"\n", 0, self.begin) + 1
        last = source.find(b"\n", self.end)
        last = len(source) if last < 0 else last
        after = source[first:self.begin] + self.text.encode() + source[self.end:last]
        return _even(source[first:last]), _even(after)

    def line_before(self, source):
        """The one above the touched ones: tells lines of the same text apart."""
        first = source.rfind(b"\n", 0, self.begin) + 1
        return _even(source[source.rfind(b"\n", 0, max(first - 1, 0)) + 1:first])

    def key(self, source):
        """Names the mutation of this very source in a state file."""
        parts = (self.path, str(self.begin), str(self.end), self.text, hashlib.sha256(source).hexdigest())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def diff(self, source):
        return "".join(difflib.unified_diff(
            source.decode().splitlines(keepends=True), self.apply(source).decode().splitlines(keepends=True),
            f"a/{self.path}", f"b/{self.path}", n=2))


KINDS = ("dropped statement", "dropped condition", "negated condition", "shifted bound", "swapped argument",
         "changed constant", "changed operator", "changed jump")


def replacement(entry, what, sources):
    """The mutation of an entry of named.yaml or planted.yaml. `sources(path)` gives a file's bytes."""
    old = entry["from"].encode()
    source = sources(entry["file"])
    if source.count(old) != 1:
        raise ValueError(f"{what}: its text stands {source.count(old)} times in its file: {entry}")
    begin = source.index(old)
    return Mutation(entry["file"], begin, begin + len(old), entry["to"], "named", what)


def named(entries, sources):
    """The mutations that named.yaml asks for."""
    return [replacement(entry, entry["what"], sources) for entry in entries]


def planted(entries, sources):
    """{name: its mutations} of planted.yaml."""
    found = {}
    for entry in entries:
        name = entry["name"]
        if name in found:
            raise ValueError(f"two planted bugs are called {name}")
        found[name] = [replacement(part, name, sources) for part in (entry, *entry.get("also", ()))]
    return found


def apply_all(mutations, source):
    """The source with those mutations, which are all of its file and don't overlap."""
    for mutation in sorted(mutations, key=lambda m: m.begin, reverse=True):  # So that offsets stay true.
        source = mutation.apply(source)
    return source


def _even(text):
    return " ".join(text.decode().split())


def order(mutations, seed):
    """One mutation of every site, in the order in which samples of `seed` draw them.

    Every site weighs the same, however many mutations it has, and the order is that of the sources alone:
    a sample of 60 begins with the sample of 20 of the same seed.
    """
    sites = {}
    for mutation in mutations:
        sites.setdefault(mutation.site, []).append(mutation)
    draw = random.Random(seed)
    drawn = []
    for site in sorted(sites):
        choices = sorted(sites[site], key=lambda m: (m.kind, m.text))
        drawn.append((draw.random(), draw.choice(choices)))
    return [mutation for _, mutation in sorted(drawn, key=lambda pair: pair[0])]


class Equivalents:
    """Mutants that somebody has found to behave as the original: equivalent.yaml."""

    def __init__(self, entries):
        self._entries = {}  # (file, from, to): [the line before or None, why, entry]
        for entry in entries:
            if not all(str(entry.get(field, "")).strip() for field in ("file", "from", "to", "why")):
                raise ValueError(f"an equivalent mutant needs file, from, to and why: {entry}")
            name = (entry["file"], " ".join(entry["from"].split()), " ".join(entry["to"].split()))
            after = " ".join(entry["after"].split()) if "after" in entry else None
            self._entries.setdefault(name, []).append((after, entry["why"], entry))

    def _matches(self, mutation, source):
        for after, why, entry in self._entries.get((mutation.path, *mutation.lines(source)), ()):
            if after is None or after == mutation.line_before(source):
                yield why, entry

    def why(self, mutation, source):
        return next((why for why, _ in self._matches(mutation, source)), None)

    def stale(self, mutations, sources):
        """The entries that no mutation of today's sources is."""
        known = [entry for m in mutations for _, entry in self._matches(m, sources[m.path])]
        return [entry for entries in self._entries.values() for _, _, entry in entries
                if not any(entry is other for other in known)]
