"""Makes baton_client/v1, the messages and stubs of proto/baton/v1 that a client needs.

    python3 examples/python/make_stubs.py

Run once, it lets the examples run in place; `pip install examples/python` does the same by itself. Uses
protoc and grpc_python_plugin (Debian: protobuf-compiler-grpc), or else grpcio-tools from PyPI; neither
reaches the network.
"""

import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PROTO_ROOT = HERE.parents[1]
PROTOS = ("proto/baton/v1/common.proto", "proto/baton/v1/inference.proto")


def compiler():
    """The command that compiles protos with gRPC stubs, without its paths."""
    plugin = shutil.which("grpc_python_plugin")
    if shutil.which("protoc") and plugin:
        return ["protoc", f"--plugin=protoc-gen-grpc={plugin}"], "--grpc_out"
    if importlib.util.find_spec("grpc_tools"):
        return [sys.executable, "-m", "grpc_tools.protoc"], "--grpc_python_out"
    raise SystemExit("neither protoc with grpc_python_plugin (Debian: protobuf-compiler-grpc) nor grpcio-tools "
                     "(pip install grpcio-tools) is here")


def make_stubs(package):
    """Writes the modules into the folder `package` (baton_client/v1)."""
    package = pathlib.Path(package)
    command, grpc_out = compiler()
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([*command, f"-I{PROTO_ROOT}", f"--python_out={out}", f"{grpc_out}={out}", *PROTOS],
                       check=True)
        package.mkdir(parents=True, exist_ok=True)
        for module in (pathlib.Path(out) / "proto/baton/v1").glob("*.py"):
            # A top-level package `proto` would get into the way of proto-plus, which is called that.
            text = re.sub(r"^from proto\.baton\.v1 import", "from baton_client.v1 import",
                          module.read_text(encoding="utf-8"), flags=re.MULTILINE)
            (package / module.name).write_text(text, encoding="utf-8")
        (package / "__init__.py").write_text("", encoding="utf-8")


if __name__ == "__main__":
    make_stubs(HERE / "baton_client" / "v1")
