"""PyPI's libtorch with CUDA, and NCCL. Headers are a system's, in which no warning is an error."""

package(default_visibility = ["//visibility:public"])

# The libraries lie where `./dev cuda` has put them, and are found there at run time as well, or beside the plugin, as an
# image has them (deploy/image); theirs find one another.
cc_library(
    name = "torch",
    hdrs = glob([
        "torch/include/ATen/**/*.h",
        "torch/include/c10/**/*.h",
        "torch/include/torch/**/*.h",
        "torch/include/torch/**/*.hpp",
    ]),
    includes = [
        "torch/include",
        "torch/include/torch/csrc/api/include",
    ],
    linkopts = [
        "-L{libraries}",
        "-Wl,-rpath,$$ORIGIN/cuda/torch/lib",
        "-Wl,-rpath,{libraries}",
        # Kernels register themselves when their library is loaded; nothing refers to them by name.
        "-Wl,--no-as-needed",
        "-ltorch",
        "-ltorch_cpu",
        "-ltorch_cuda",
        "-lc10",
        "-lc10_cuda",
    ],
)

# CUDA's runtime, and the compiler that is a library of it.
cc_library(
    name = "runtime",
    hdrs = glob([
        "nvidia/cu13/include/*.h",
        "nvidia/cu13/include/*.hpp",
        "nvidia/cu13/include/crt/*",
        "nvidia/cu13/include/nv/**",
    ]),
    includes = ["nvidia/cu13/include"],
    linkopts = [
        "-L{site}/nvidia/cu13/lib",
        "-Wl,-rpath,$$ORIGIN/cuda/nvidia/cu13/lib",
        "-Wl,-rpath,{site}/nvidia/cu13/lib",
        "-l:libcudart.so.13",
        "-l:libnvrtc.so.13",
    ],
    deps = [":torch"],
)

cc_library(
    name = "nccl",
    hdrs = ["nvidia/nccl/include/nccl.h"],
    includes = ["nvidia/nccl/include"],
    linkopts = [
        "-L{site}/nvidia/nccl/lib",
        "-Wl,-rpath,$$ORIGIN/cuda/nvidia/nccl/lib",
        "-Wl,-rpath,{site}/nvidia/nccl/lib",
        "-l:libnccl.so.2",
    ],
    deps = [":runtime"],
)
