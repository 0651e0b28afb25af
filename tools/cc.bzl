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
    """A pure core, built twice: `name` for production and `name_planted` for the simulation.

    The planted variant can switch on one of the bugs of common/base/planted_bug.h at run time, so
    that the simulation proves that it would catch it. `core_deps` are cores themselves and are
    replaced by their planted twins in the planted variant; two variants never meet in one binary.
    """
    native.cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        deps = deps + core_deps + ["//common/base:planted_bug"],
        visibility = visibility,
    )
    native.cc_library(
        name = name + "_planted",
        srcs = srcs,
        hdrs = hdrs,
        deps = deps + [_planted(d) for d in core_deps] + ["//common/base:planted_bug_on"],
        testonly = True,
        tags = ["no_lint"],
        visibility = ["//tests:__subpackages__"] + (visibility or []),
    )

def _planted(label):
    return label + "_planted" if ":" in label else label + ":" + label.split("/")[-1] + "_planted"
