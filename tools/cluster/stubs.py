"""Python messages and stubs of proto/baton/v1, made by Debian's protoc when first imported."""

import importlib
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
_directory = tempfile.TemporaryDirectory(prefix="baton-stubs-")
_protos = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "proto/baton/v1").glob("*.proto"))
# Debian 12's grpc_tools is older than its protoc and knows no `optional`.
subprocess.run(["protoc", f"-I{ROOT}", f"--python_out={_directory.name}", f"--grpc_out={_directory.name}",
                f"--plugin=protoc-gen-grpc={shutil.which('grpc_python_plugin')}", *_protos], check=True)
sys.path.insert(0, _directory.name)

common = importlib.import_module("proto.baton.v1.common_pb2")
inference = importlib.import_module("proto.baton.v1.inference_pb2")
inference_grpc = importlib.import_module("proto.baton.v1.inference_pb2_grpc")
decode = importlib.import_module("proto.baton.v1.decode_pb2")
decode_grpc = importlib.import_module("proto.baton.v1.decode_pb2_grpc")
prefill = importlib.import_module("proto.baton.v1.prefill_pb2")
prefill_grpc = importlib.import_module("proto.baton.v1.prefill_pb2_grpc")
cluster = importlib.import_module("proto.baton.v1.cluster_pb2")
cluster_grpc = importlib.import_module("proto.baton.v1.cluster_pb2_grpc")
