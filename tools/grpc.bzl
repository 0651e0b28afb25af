"""cc_proto_grpc_library: Debian's protoc and grpc_cpp_plugin, no external repositories."""

def cc_proto_grpc_library(name, srcs, deps = [], visibility = None):
    """Messages and gRPC services of `srcs` as one C++ library; `deps` are libraries of this macro."""
    outs = []
    for s in srcs:
        stem = s[:-len(".proto")]
        outs += [stem + e for e in [".pb.h", ".pb.cc", ".grpc.pb.h", ".grpc.pb.cc"]]
    native.genrule(
        name = name + "_gen",
        srcs = srcs + [d + "_protos" for d in deps],
        outs = outs,
        cmd = "protoc -I. --cpp_out=$(GENDIR) --grpc_out=$(GENDIR) " +
              "--plugin=protoc-gen-grpc=$$(command -v grpc_cpp_plugin) " +
              " ".join(["$(location %s)" % s for s in srcs]),
    )
    # With what they import, for protoc reads all of it.
    native.filegroup(
        name = name + "_protos",
        srcs = srcs + [d + "_protos" for d in deps],
        visibility = ["//visibility:public"],
    )
    native.cc_library(
        name = name,
        srcs = [o for o in outs if o.endswith(".cc")],
        hdrs = [o for o in outs if o.endswith(".h")],
        deps = deps + ["@system//:grpc++"],
        # Generated code: we read neither its warnings nor its speed.
        copts = ["-w", "-O1"],
        visibility = visibility,
    )
