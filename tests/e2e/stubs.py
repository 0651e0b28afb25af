"""Python messages and stubs of proto/baton/v1, made by grpc_tools when first imported."""

import importlib
import pathlib
import sys
import tempfile

from grpc_tools import protoc

ROOT = pathlib.Path(__file__).resolve().parents[2]
_directory = tempfile.TemporaryDirectory(prefix="baton-stubs-")
_protos = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "proto/baton/v1").glob("*.proto"))
_code = protoc.main(["protoc", f"-I{ROOT}", "-I/usr/include", f"--python_out={_directory.name}",
                     f"--grpc_python_out={_directory.name}", *_protos])
if _code != 0:
    raise RuntimeError(f"protoc ended with {_code}")
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
