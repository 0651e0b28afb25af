"""clang-tidy as an aspect: one action per source file, Debian's clang-tidy, cached like a compile.

The output group `report` holds every source of the targets named; a group named like `tidy_group`
says holds that one source alone, which is how tools/lint lints what has changed and nothing else.
"""

_CPP = ("cc", "cpp")

def tidy_group(path):
    """The output group of one source."""
    return "tidy_" + path.replace("/", "_").replace(".", "_").replace("-", "_")

def _impl(target, ctx):
    if CcInfo not in target or not hasattr(ctx.rule.attr, "srcs") or "no_lint" in ctx.rule.attr.tags:
        return []
    context = target[CcInfo].compilation_context
    flags = ["-std=c++20", "-Wthread-safety"]
    flags += ["-iquote" + p for p in context.quote_includes.to_list()]
    flags += ["-isystem" + p for p in context.system_includes.to_list() + context.includes.to_list()]
    flags += ["-D" + d for d in context.defines.to_list()]
    flags += [f for f in getattr(ctx.rule.attr, "copts", []) if f.startswith("-m")]
    groups = {"report": []}
    for src in ctx.rule.files.srcs:
        if src.extension not in _CPP or not src.is_source or src.path.startswith("external/"):
            continue
        out = ctx.actions.declare_file(src.path.replace("/", "_") + ".tidy." + ctx.label.name)
        ctx.actions.run_shell(
            inputs = depset([src] + ctx.files._config, transitive = [context.headers]),
            outputs = [out],
            command = "clang-tidy --quiet --warnings-as-errors='*' --config-file=%s %s -- %s > %s 2>&1 || (cat %s; exit 1)" % (
                ctx.files._config[0].path,
                src.path,
                " ".join(flags),
                out.path,
                out.path,
            ),
            mnemonic = "ClangTidy",
            use_default_shell_env = True,
        )
        groups["report"].append(out)
        groups[tidy_group(src.path)] = [out]
    return [OutputGroupInfo(**{name: depset(outs) for name, outs in groups.items()})]

clang_tidy_aspect = aspect(
    implementation = _impl,
    attrs = {"_config": attr.label(default = "//:clang_tidy_config")},
)
