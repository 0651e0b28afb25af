"""A file tree in memory, and its layers as tar archives that depend on nothing but the contents."""

import dataclasses
import gzip
import hashlib
import io
import pathlib
import posixpath
import tarfile
import tempfile
import typing

DIRECTORY, FILE, LINK = "directory", "file", "link"


@dataclasses.dataclass(frozen=True)
class Entry:
    kind: str
    mode: int = 0o755
    source: pathlib.Path | None = None  # Of a file that is copied,
    text: bytes = b""                   # or what it holds.
    target: str = ""                    # Of a link.

    def size(self):
        return self.source.stat().st_size if self.source else len(self.text)


class Tree:
    """Paths are absolute inside the image. Everything belongs to root; nothing is writable by others
    but what was added so. Links among the top directories (/lib -> usr/lib) are followed when adding."""

    def __init__(self, links=()):
        self.entries = {}
        self.links = dict(links)
        for path, target in self.links.items():
            self.entries[path] = Entry(LINK, 0o777, target=target)
            self.directory("/" + target)

    def _place(self, path):
        path = posixpath.normpath(path)
        top, _, rest = path[1:].partition("/")
        if rest and "/" + top in self.links:
            path = posixpath.join("/", self.links["/" + top], rest)
        return path

    def _add(self, path, entry):
        path = self._place(path)
        known = self.entries.get(path)
        if known is not None and known != entry:
            raise ValueError(f"two different things at {path}: {known} and {entry}")
        if path != "/":
            self.directory(posixpath.dirname(path))
        self.entries[path] = entry

    def directory(self, path, mode=0o755):
        path = self._place(path)
        known = self.entries.get(path)
        if path != "/" and known is None:
            self._add(path, Entry(DIRECTORY, mode))
        elif known is not None and known.kind != DIRECTORY:
            raise ValueError(f"{path} is a {known.kind}, not a directory")

    def file(self, path, source, mode=0o644):
        self._add(path, Entry(FILE, mode, source=pathlib.Path(source).resolve()))

    def text(self, path, text, mode=0o644):
        self._add(path, Entry(FILE, mode, text=text.encode()))

    def link(self, path, target):
        self._add(path, Entry(LINK, 0o777, target=target))

    def bytes_total(self):
        """Of the files' contents."""
        return sum(entry.size() for entry in self.entries.values() if entry.kind == FILE)

    def write_tar(self, stream, without=None):
        """Sorted, at the epoch, owned by root; leaves out what `without`, a lower layer, has already."""
        below = without.entries if without else {}
        with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for path, entry in sorted(self.entries.items()):
                if below.get(path) == entry:
                    continue
                info = tarfile.TarInfo(path[1:])
                info.mode, info.mtime = entry.mode, 0
                if entry.kind == DIRECTORY:
                    info.type = tarfile.DIRTYPE
                    archive.addfile(info)
                elif entry.kind == LINK:
                    info.type, info.linkname = tarfile.SYMTYPE, entry.target
                    archive.addfile(info)
                elif entry.source is None:
                    info.size = len(entry.text)
                    archive.addfile(info, io.BytesIO(entry.text))
                else:
                    info.size = entry.size()
                    with open(entry.source, "rb") as file:
                        archive.addfile(info, file)


@dataclasses.dataclass(frozen=True)
class Layer:
    comment: str
    blob: typing.BinaryIO  # The compressed archive, in a file: with CUDA's libraries it has gigabytes;
    size: int
    digest: str            # its digest,
    diff_id: str           # and that of the archive itself.


class Digesting:
    """Writes to a stream, and knows the digest of all that it has written."""

    def __init__(self, stream):
        self.stream, self.hash = stream, hashlib.sha256()

    def write(self, data):
        self.hash.update(data)
        return self.stream.write(data)

    def flush(self):
        self.stream.flush()

    def digest(self):
        return "sha256:" + self.hash.hexdigest()


def layer(tree, comment, without=None):
    blob = tempfile.TemporaryFile()
    compressed = Digesting(blob)
    # Neither a file name nor a time goes into the header: equal trees make equal bytes.
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=compressed, mtime=0) as zipped:
        plain = Digesting(zipped)
        tree.write_tar(plain, without)
    return Layer(comment, blob, blob.tell(), compressed.digest(), plain.digest())


def digest_of(blob):
    return "sha256:" + hashlib.sha256(blob).hexdigest()
