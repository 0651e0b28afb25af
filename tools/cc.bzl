"""C++ rules with the defaults that every package of Baton shares."""

def cc_unit_test(name, srcs, deps = [], size = "small", data = [], **kwargs):
    """A GoogleTest binary with gtest's main and the sanitizers' suppression files at hand."""
    native.cc_test(
        name = name,
        srcs = srcs,
        size = size,
        deps = deps + ["@system//:gtest_main"],
        data = data + ["//tools:lsan.supp", "//tools:tsan.supp"],
        **kwargs
    )

def core_library(name, srcs, hdrs, deps = [], core_deps = [], visibility = None):
    """A pure core: a deterministic state machine without I/O, threads or a clock, which tests/sim runs.

    `core_deps` are the cores that it is composed of.
    """
    native.cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        deps = deps + core_deps,
        visibility = visibility,
    )
