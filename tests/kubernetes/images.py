"""Container images as archives that `ctr images import` takes, packed with Python alone."""

import hashlib
import io
import json
import pathlib
import platform
import tarfile

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
EPOCH = "1970-01-01T00:00:00Z"


def add_bytes(archive, name, content, mode=0o644):
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def layer_of(files):
    """One layer with `files` ({path in the image: bytes}), all executable by all."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in sorted(files.items()):
            add_bytes(archive, name, content, 0o755)
    return buffer.getvalue()


def pack(files, reference, config, out):
    """Writes an image of one layer to `out`, in the format of `docker save`."""
    layer = layer_of(files)
    description = {"architecture": ARCHITECTURE, "os": "linux", "created": EPOCH, "config": config,
                   "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
                   "history": [{"created": EPOCH}]}
    manifest = [{"Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]
    with tarfile.open(out, "w") as archive:
        add_bytes(archive, "manifest.json", json.dumps(manifest).encode())
        add_bytes(archive, "config.json", json.dumps(description).encode())
        add_bytes(archive, "layer.tar", layer)


def pack_single(binary, reference, out):
    """An image that is one static binary."""
    pack({"app": pathlib.Path(binary).read_bytes()}, reference, {"Entrypoint": ["/app"]}, out)
