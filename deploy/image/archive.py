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


def descriptor(media_type, blob, **more):
    return {"mediaType": media_type, "digest": digest_of(blob), "size": len(blob), **more}


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
        "config": descriptor(CONFIG_TYPE, config),
        "layers": [descriptor(LAYER_TYPE, layer.blob) for layer in layers],
        "annotations": annotations,
    })
    index = to_json({
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [descriptor(MANIFEST_TYPE, manifest, annotations={
            # The whole reference, which Podman takes as the name; containerd has a name of its own.
            "org.opencontainers.image.ref.name": tag,
            "io.containerd.image.name": tag,
        }) for tag in tags],
    })
    docker = to_json([{
        "Config": blob_path(config),
        "RepoTags": tags,
        "Layers": [blob_path(layer.blob) for layer in layers],
    }])
    files = {"oci-layout": to_json({"imageLayoutVersion": "1.0.0"}), "index.json": index, "manifest.json": docker}
    for blob in (config, manifest, *(layer.blob for layer in layers)):
        files[blob_path(blob)] = blob
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for folder in ("blobs", "blobs/sha256"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, 0
            archive.addfile(info)
        for path, blob in sorted(files.items()):
            info = tarfile.TarInfo(path)
            info.size, info.mode, info.mtime = len(blob), 0o644, 0
            archive.addfile(info, io.BytesIO(blob))
    return digest_of(manifest)


def blob_path(blob):
    return "blobs/" + digest_of(blob).replace(":", "/")
