"""What an image with CUDA has of the wheels that `./dev cuda` unpacks: libraries that are loaded, and their licences.

They lie beside the torch plugin as they lie in the wheels, since they find one another, and it them, by their places.
The driver's own (libcuda.so.1, libnvidia-ml.so.1) come from the machine, by way of the container runtime.
"""

import os
import pathlib
import subprocess

from builder import Unusable

PLACE = "/usr/lib/baton/cuda"
# Loaded by name, so that no library asks for them: torch's way to the compiler, the compiler's part, cuDNN's parts.
LOADED = ("torch/lib/libcaffe2_nvrtc.so", "nvidia/*/lib/libnvrtc-builtins.so.*", "nvidia/cudnn/lib/libcudnn_*.so.*")
# As the driver's runtime for containers reads them: which of the driver's libraries it adds (those of CUDA, and NVML),
# and that they belong where Debian's loader looks.
ENVIRONMENT = ["NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
MARK = "/etc/debian_version"


def linked(objects, site):
    """Files of `site` that `objects` need, those of the driver aside."""
    found = set()
    for path in objects:
        done = subprocess.run(["ldd", path], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unusable(f"ldd {path}: {done.stderr.strip() or done.stdout.strip()}")
        for line in done.stdout.splitlines():
            _, _, place = line.partition(" => ")
            resolved = pathlib.Path(os.path.realpath(place.split(" (")[0]))
            if site in resolved.parents:
                found.add(resolved)
    return found


def libraries(plugin, site):
    """All of the wheels that is loaded; sorted."""
    loaded = []
    for pattern in LOADED:
        matches = [path for path in sorted(site.glob(pattern)) if ".alt." not in path.name]
        if not matches:
            raise Unusable(f"{site} has no {pattern}")
        loaded += matches
    found = linked([plugin], site)
    if not found:
        raise Unusable(f"{plugin} is not linked with the libraries of {site}: it is built with --config=cuda "
                       "by ./dev image --with-cuda")
    return sorted(found | set(loaded) | linked(loaded, site))


def add_wheels(tree, plugin, site):
    for path in libraries(plugin, site):
        tree.file(f"{PLACE}/{path.relative_to(site)}", path)
    for path in sorted(site.glob("*.dist-info/**/*")):
        if path.is_file():
            tree.file(f"/usr/share/doc/baton/cuda/{path.relative_to(site)}", path)
    tree.file(MARK, MARK)
