"""C++ rules with the defaults that every package of Baton shares."""

# Only what is compiled with the flags of everything else can use a precompiled header.
def _precompiled(name, kwargs):
    return {} if "copts" in kwargs else {
        "copts": ["-include", "tools/pch/%s.h" % name],
        "deps": kwargs.pop("deps", []) + ["//tools/pch:" + name],
    }

def cc_library(srcs = [], **kwargs):
    """Bazel's own, whose sources start from a precompiled header."""
    if srcs:
        kwargs.update(_precompiled("library", kwargs))
    native.cc_library(srcs = srcs, **kwargs)

def cc_binary(**kwargs):
    """Bazel's own, whose sources start from a precompiled header."""
    kwargs.update(_precompiled("library", kwargs))
    native.cc_binary(**kwargs)

# What a test calls is optimised as for users; the test itself costs more to compile than to run. A precompiled header
# has the same level, or GCC passes over it.
UNIT_TEST_LEVEL = "-O1"

# At that level GCC's warnings that follow values through calls see errors in the standard library.
UNIT_TEST_COPTS = [
    UNIT_TEST_LEVEL,
    "-Wno-array-bounds",
    "-Wno-maybe-uninitialized",
    "-Wno-restrict",
    "-Wno-stringop-overflow",
    "-Wno-stringop-overread",
    "-include",
    "tools/pch/unit_test.h",
]

def cc_unit_test(name, srcs, deps = [], size = "small", data = [], **kwargs):
    """A GoogleTest binary with gtest's main and the sanitizers' suppression files at hand."""
    if size == "small":
        # Bazel allows a minute. Beside busy neighbours libtorch's threads take five times as long as alone.
        kwargs.setdefault("timeout", "moderate")
    native.cc_test(
        name = name,
        srcs = srcs,
        size = size,
        copts = UNIT_TEST_COPTS,
        deps = deps + [
            "//tools/pch:unit_test",
            "@system//:gtest_main",
        ],
        data = data + ["//tools:lsan.supp", "//tools:tsan.supp"],
        **kwargs
    )

def core_library(name, srcs, hdrs, deps = [], core_deps = [], visibility = None):
    """A pure core: a deterministic state machine without I/O, threads or a clock, which tests/sim runs.

    `core_deps` are the cores that it is composed of.
    """
    cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        deps = deps + core_deps,
        visibility = visibility,
    )
