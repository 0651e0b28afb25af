"""What an image with CUDA has of the wheels that `./dev cuda` unpacks: libraries that are loaded, and their licences.

They lie beside the torch plugin as they lie in the wheels, since they find one another, and it them, by their places.
The driver's own (libcuda.so.1, libnvidia-ml.so.1) come from the machine, by way of the container runtime.
"""

import pathlib

from builder import Unusable
from debian import libraries_of

PLACE = "/usr/lib/baton/cuda"
# Loaded by name, so that no library asks for them: torch's way to the compiler, the compiler's part, cuDNN's parts.
LOADED = ("torch/lib/libcaffe2_nvrtc.so", "nvidia/*/lib/libnvrtc-builtins.so.*", "nvidia/cudnn/lib/libcudnn_*.so.*")
# As the driver's runtime for containers reads them: which of the driver's libraries it adds (those of CUDA, and NVML),
# and that they belong where Debian's loader looks.
ENVIRONMENT = ["NVIDIA_DRIVER_CAPABILITIES=compute,utility"]
MARK = "/etc/debian_version"


def linked(objects, site):
    """Files of `site` that `objects` need. What the loader does not find is the driver's."""
    resolved = (pathlib.Path(path).resolve() for path in libraries_of(*objects, complete=False))
    return {path for path in resolved if site in path.parents}


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
