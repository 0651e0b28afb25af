"""The repository of what `./dev cuda` has unpacked. The default build never looks at it."""

def _cuda_impl(repository):
    checkout = repository.path(Label("//:WORKSPACE")).dirname
    site = checkout.get_child(".cache").get_child("cuda").get_child("site")
    if not site.get_child("READY").exists:
        fail("--config=cuda takes a libtorch with CUDA, and there is none in " + str(site) +
             ": ./dev cuda fetches it. Without --config=cuda the torch plugin is built from Debian's, for CPUs")
    for name in ("nvidia", "torch"):
        repository.symlink(site.get_child(name), name)
    repository.template(
        "BUILD.bazel",
        Label("//third_party/cuda:cuda.BUILD.tpl"),
        {"{libraries}": str(site.get_child("torch").get_child("lib")), "{site}": str(site)},
    )

cuda_repository = repository_rule(
    implementation = _cuda_impl,
    doc = "libtorch with CUDA and NCCL as Bazel targets, or an error that says how to get them.",
    local = True,
)
