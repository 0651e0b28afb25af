"""One tar archive that is both an OCI image layout and what `docker save` writes.

So containerd (`ctr images import`), Podman and Docker (`load`) and skopeo (`oci-archive:` or
`docker-archive:`) all take the same file; blobs are in it once.
"""

import io
import json
import tarfile

from tree import digest_of

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"


def to_json(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def descriptor(media_type, digest, size, **more):
    return {"mediaType": media_type, "digest": digest, "size": size, **more}


def descriptor_of(media_type, blob, **more):
    return descriptor(media_type, digest_of(blob), len(blob), **more)


def image_config(layers, created, architecture, run):
    """`run`: User, Entrypoint, Labels ... as the OCI image specification names them."""
    return to_json({
        "architecture": architecture,
        "config": run,
        "created": created,
        "history": [{"created": created, "comment": layer.comment} for layer in layers],
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
    })


def write_archive(stream, layers, config, tags, annotations):
    """`tags` are whole references such as localhost/baton:0.1.0."""
    manifest = to_json({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": descriptor_of(CONFIG_TYPE, config),
        "layers": [descriptor(LAYER_TYPE, layer.digest, layer.size) for layer in layers],
        "annotations": annotations,
    })
    index = to_json({
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [descriptor_of(MANIFEST_TYPE, manifest, annotations={
            # The whole reference, which Podman takes as the name; containerd has a name of its own.
            "org.opencontainers.image.ref.name": tag,
            "io.containerd.image.name": tag,
        }) for tag in tags],
    })
    docker = to_json([{
        "Config": blob_path(digest_of(config)),
        "RepoTags": tags,
        "Layers": [blob_path(layer.digest) for layer in layers],
    }])
    texts = {"oci-layout": to_json({"imageLayoutVersion": "1.0.0"}), "index.json": index, "manifest.json": docker,
             blob_path(digest_of(config)): config, blob_path(digest_of(manifest)): manifest}
    files = {path: (len(text), io.BytesIO(text)) for path, text in texts.items()}
    for layer in layers:
        layer.blob.seek(0)
        files[blob_path(layer.digest)] = layer.size, layer.blob
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for folder in ("blobs", "blobs/sha256"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, 0
            archive.addfile(info)
        for path, (size, file) in sorted(files.items()):
            info = tarfile.TarInfo(path)
            info.size, info.mode, info.mtime = size, 0o644, 0
            archive.addfile(info, file)
    return digest_of(manifest)


def blob_path(digest):
    return "blobs/" + digest.replace(":", "/")
