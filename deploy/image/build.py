"""Builds Baton's container image without a registry: the binary, the libraries it needs, the model.

    ./dev image [--without-model | --model DIR] [--with-torch | --with-cuda] [--tag REFERENCE] [--out FILE] [--root DIR]

One image serves every role: its entry point is `baton`. The archive is taken by `ctr images import`,
`podman load`, `docker load` and skopeo. Equal inputs make equal bytes. The last line on standard output
is the archive's path.
"""

import argparse
import datetime
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools/dev"), str(ROOT / "tools/cuda")]

import cuda  # noqa: E402
import fetch  # noqa: E402
from archive import image_config, write_archive  # noqa: E402
from build_facts import commit_seconds, revision  # noqa: E402
from builder import Unusable, exit_code, output_of  # noqa: E402
from debian import add_packages_files  # noqa: E402
from tree import Tree, layer  # noqa: E402

TORCH_PLUGIN = ROOT / "bazel-bin/common/engine/torch/libbaton_torch.so"
USER = 65532  # As other images without a root user have it.
UNPACKED_BYTES_MAX = 600 * 1000 * 1000
UNPACKED_BYTES_MAX_WITH_CUDA = 4500 * 1000 * 1000
BINARY = "/usr/bin/baton"
# How containers of it run, as the OCI image specification names it. The Containerfile says the same.
RUN = {"Cmd": ["--help"], "Entrypoint": [BINARY], "Env": ["PATH=/usr/bin"], "StopSignal": "SIGTERM",
       "ExposedPorts": {"30000/tcp": {}, "30001/tcp": {}, "30002/tcp": {}}, "User": f"{USER}:{USER}", "WorkingDir": "/"}
# Debian's merged /usr: the loader's own path goes through it.
LINKS = {"/bin": "usr/bin", "/sbin": "usr/sbin", "/lib": "usr/lib", "/lib64": "usr/lib64"}
# What may lie in a model's directory and be of use when it serves, beside its documentation.
MODEL_FILES = ("*.json", "*.safetensors", "*.md", "*.txt")


def system_tree(objects):
    tree = Tree(LINKS)
    packages = add_packages_files(tree, objects, without=fetch.SITE.resolve())
    tree.text("/etc/passwd", f"root:x:0:0:root:/nonexistent:/sbin/nologin\n"
                             f"baton:x:{USER}:{USER}:baton:/nonexistent:/sbin/nologin\n")
    tree.text("/etc/group", f"root:x:0:\nbaton:x:{USER}:\n")
    tree.text("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
    tree.directory("/tmp", 0o1777)
    # Where container runtimes mount; with a read-only root they can't make them.
    for path in ("/dev", "/proc", "/sys", "/run", "/etc/baton", "/models"):
        tree.directory(path)
    return tree, packages


def cuda_tree():
    tree = Tree(LINKS)
    cuda.add_wheels(tree, TORCH_PLUGIN, fetch.SITE.resolve())
    return tree


def baton_tree(baton, torch):
    tree = Tree(LINKS)
    tree.file(BINARY, baton, 0o755)
    if torch:
        tree.file("/usr/lib/baton/libbaton_torch.so", torch)
    tree.file("/usr/share/doc/baton/copyright", ROOT / "LICENSE")
    return tree


def model_tree(model):
    tree = Tree(LINKS)
    files = sorted({path for pattern in MODEL_FILES for path in model.glob(pattern)})
    if not (model / "config.json").is_file():
        raise Unusable(f"{model} is not a model: it has no config.json")
    for path in files:
        tree.file(f"/models/{model.name}/{path.name}", path)
    return tree


def created():
    seconds = datetime.datetime.fromtimestamp(commit_seconds(), datetime.timezone.utc)
    return seconds.strftime("%Y-%m-%dT%H:%M:%SZ")


def labels(version):
    prefix = "org.opencontainers.image."
    texts = {"title": "baton", "version": version, "revision": revision(), "licenses": "Apache-2.0",
             "description": "Serves large language models with prefill and decode on separate machines; "
                            "one image for router, prefill and decode"}
    return {prefix + key: text for key, text in texts.items() if text}


def parse_arguments():
    parser = argparse.ArgumentParser(prog="./dev image", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baton", type=pathlib.Path, default=ROOT / "bazel-bin/services/baton/baton")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", type=pathlib.Path, default=ROOT / "models/austen",
                       help="a model's directory, which becomes /models/NAME (default: the one that ships)")
    model.add_argument("--without-model", action="store_true", help="models are mounted when it runs")
    torch = parser.add_mutually_exclusive_group()
    torch.add_argument("--with-torch", action="store_true",
                       help="libbaton_torch.so and libtorch, for --executor torch and "
                       "--linear-backend torch (480 MB)")
    torch.add_argument("--with-cuda", action="store_true",
                       help="the same with the libtorch, CUDA and NCCL that ./dev cuda fetches, for --device cuda")
    parser.add_argument("--tag", action="append", help="name of the image (default localhost/baton:VERSION); "
                        "may be given more than once")
    parser.add_argument("--out", type=pathlib.Path, help="the archive (default dist/baton-VERSION-image-ARCH.tar)")
    parser.add_argument("--root", type=pathlib.Path,
                        help="write the files into this empty directory instead, for a Containerfile")
    return parser.parse_args()


def layers_of(arguments):
    """[(comment, tree)], what changes least first."""
    torch = TORCH_PLUGIN if arguments.with_torch or arguments.with_cuda else None
    most = UNPACKED_BYTES_MAX_WITH_CUDA if arguments.with_cuda else UNPACKED_BYTES_MAX
    system, packages = system_tree([path for path in (arguments.baton, torch) if path])
    parts = [(f"files of {len(packages)} Debian packages", system)]
    if arguments.with_cuda:
        parts.append(("libtorch with CUDA, from PyPI's wheels", cuda_tree()))
    parts.append(("baton", baton_tree(arguments.baton, torch)))
    if not arguments.without_model:
        parts.append((f"model {arguments.model.name}", model_tree(arguments.model.resolve())))
    bytes_total = sum(tree.bytes_total() for _, tree in parts)
    for comment, tree in parts:
        print(f"{tree.bytes_total() / 1e6:8.1f} MB  {comment}", file=sys.stderr)
    print(f"{bytes_total / 1e6:8.1f} MB  unpacked, at most {most / 1e6:.0f}", file=sys.stderr)
    if bytes_total > most:
        raise Unusable(f"the image would have {bytes_total / 1e6:.1f} MB unpacked; at most "
                       f"{most / 1e6:.0f} MB are allowed")
    return parts


def write_root(parts, root):
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        raise Unusable(f"{root} is not empty")
    below = None
    for _, tree in parts:
        with subprocess.Popen(["tar", "-x", "-C", root], stdin=subprocess.PIPE) as tar:
            tree.write_tar(tar.stdin, below)
        if tar.returncode != 0:
            raise Unusable(f"tar exited with {tar.returncode}")
        below = parts[0][1]
    print(root)


def write_image(parts, arguments):
    version = output_of(arguments.baton, "--version").split()[-1]
    architecture = output_of("dpkg", "--print-architecture").strip()
    tags = arguments.tag or [f"localhost/baton:{version}"]
    out = arguments.out or ROOT / "dist" / f"baton-{version}-image-{architecture}.tar"
    # The links and directories of the first layer are there already.
    layers = [layer(tree, comment, parts[0][1] if index else None) for index, (comment, tree) in enumerate(parts)]
    environment = RUN["Env"] + (cuda.ENVIRONMENT if arguments.with_cuda else [])
    config = image_config(layers, created(), architecture, {**RUN, "Env": environment, "Labels": labels(version)})
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(out.name + ".partial")
    with open(partial, "wb") as stream:
        digest = write_archive(stream, layers, config, tags, labels(version))
    partial.replace(out)
    print(f"{out.stat().st_size / 1e6:8.1f} MB  archive of {', '.join(tags)}, {digest}", file=sys.stderr)
    print(out)


def build(arguments):
    parts = layers_of(arguments)
    if arguments.root:
        write_root(parts, arguments.root)
    else:
        write_image(parts, arguments)


def main():
    arguments = parse_arguments()
    return exit_code("./dev image", lambda: build(arguments))


if __name__ == "__main__":
    sys.exit(main())
