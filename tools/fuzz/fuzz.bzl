"""Fuzz targets: `LLVMFuzzerTestOneInput`, with a corpus that the tests replay."""

def fuzz_target(name, deps):
    """A test that runs NAME_fuzz.cc on every file of corpus/NAME and on 300 changes of them by a fixed seed.

    `./dev check fuzz` goes on with other seeds, and keeps what fails.
    """
    corpus = "corpus/" + name
    native.cc_test(
        name = name,
        srcs = [name + "_fuzz.cc"],
        size = "medium",
        args = ["--changes=300", native.package_name() + "/" + corpus],
        data = native.glob([corpus + "/*"]) + ["//tools:lsan.supp", "//tools:tsan.supp"],
        deps = deps + ["//tools/fuzz:replay"],
        tags = ["fuzz"],
    )
