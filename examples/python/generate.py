"""Continues a prompt through Baton's gRPC service and prints the text as it comes.

    /usr/bin/python3 examples/python/generate.py --target 127.0.0.1:30001 "It was a truth"

Needs Debian's python3-grpcio and protobuf-compiler-grpc; the stubs are made from proto/ on the fly.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile

import grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load_stubs(directory):
    """Generates and imports the two modules that a client of Inference needs."""
    protos = [f"proto/baton/v1/{name}.proto" for name in ("common", "inference")]
    subprocess.run(["protoc", f"-I{ROOT}", f"--python_out={directory}", f"--grpc_out={directory}",
                    f"--plugin=protoc-gen-grpc={shutil.which('grpc_python_plugin')}", *protos], check=True)
    sys.path.insert(0, directory)
    from proto.baton.v1 import common_pb2, inference_pb2, inference_pb2_grpc
    return common_pb2, inference_pb2, inference_pb2_grpc


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt")
    parser.add_argument("--target", default="127.0.0.1:30001")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        common, inference, inference_grpc = load_stubs(directory)
        sampling = common.SamplingParams(temperature=arguments.temperature, top_p=0.95,
                                         max_tokens=arguments.max_tokens)
        if arguments.seed is not None:
            sampling.seed = arguments.seed
        with grpc.insecure_channel(arguments.target) as channel:
            call = inference_grpc.InferenceStub(channel).Generate(
                inference.GenerateRequest(text=arguments.prompt, sampling=sampling), timeout=600)
            try:
                for response in call:
                    piece = response.tokens if response.HasField("tokens") else response.finished
                    print(piece.text, end="", flush=True)
                finished = response.finished
            except grpc.RpcError as error:
                raise SystemExit(f"{error.code().name}: {error.details()}")
    reason = common.FinishReason.Name(finished.reason).removeprefix("FINISH_REASON_").lower()
    print(f"\n[{finished.usage.prompt_tokens} + {finished.usage.completion_tokens} tokens, {reason}, "
          f"first after {finished.timing.ttft_us / 1000:.1f} ms]")


if __name__ == "__main__":
    main()
