"""Fuzz targets: `LLVMFuzzerTestOneInput`, with a corpus that the tests replay."""

def fuzz_target(name, srcs, deps = [], corpus = None, changes = 300, size = "small", **kwargs):
    """A test that runs the target on every file of the corpus and on `changes` changes of them by a fixed seed.

    `./dev check fuzz` goes on with other seeds, and keeps what fails.
    """
    folder = corpus or "corpus/" + name
    native.cc_test(
        name = name,
        srcs = srcs,
        size = size,
        args = ["--changes=%d" % changes, native.package_name() + "/" + folder],
        data = native.glob([folder + "/*"]) + ["//tools:lsan.supp", "//tools:tsan.supp"],
        deps = deps + ["//tools/fuzz:replay"],
        tags = ["fuzz"],
        **kwargs
    )
