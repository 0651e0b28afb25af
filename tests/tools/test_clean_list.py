"""What the lint by content decides to read, on a small tree of its own."""

import pathlib
import subprocess
import sys

import pytest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path[:0] = [str(TOOLS / "dev"), str(TOOLS / "lint")]

import clean_list  # noqa: E402

FILES = {
    ".clang-tidy": "Checks: -*\n",
    "tools/clang_tidy.bzl": "flags\n",
    "common/a/hub.h": "// hub\n",
    "common/a/a.h": '#include "common/a/hub.h"\n',
    "common/a/a.cc": '#include "common/a/a.h"\n#include <vector>\n',
    "common/b/b.cc": '#include "common/a/hub.h"\n#include "proto/p.grpc.pb.h"\n',
    "proto/p.proto": 'syntax = "proto3";\nimport "proto/q.proto";\n',
    "proto/q.proto": 'syntax = "proto3";\n',
    **{f"services/s/s{i:02}.cc": '#include "common/a/hub.h"\n' for i in range(20)},
}


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """The folder of a tree whose sources have all been linted clean."""
    monkeypatch.setattr(clean_list, "ROOT", tmp_path)
    monkeypatch.setattr(clean_list, "CLEAN_LIST", tmp_path / "clean.txt")
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    made = clean_list.Tree()
    assert len(clean_list.plan(made).changed) == 22
    clean_list.add(made, made.sources)
    return tmp_path


def plan():
    return clean_list.plan(clean_list.Tree())


def test_nothing_is_linted_twice(tree):
    assert plan() == clean_list.Plan([], [], [])


def test_a_changed_source_is_linted_and_nothing_else(tree):
    (tree / "common/b/b.cc").write_text("int other;\n")
    assert plan() == clean_list.Plan(["common/b/b.cc"], [], [])
    clean_list.add(clean_list.Tree(), ["common/b/b.cc"])
    assert plan().sources == []


def test_a_changed_header_is_read_through_a_near_user(tree):
    (tree / "common/a/a.h").write_text('int other;\n#include "common/a/hub.h"\n')
    assert plan() == clean_list.Plan([], ["common/a/a.cc"], [])


def test_a_changed_comment_is_not_linted_again(tree):
    (tree / "common/b/b.cc").write_text("// Other words.\n\n" + FILES["common/b/b.cc"] + "  // The end.\n")
    (tree / "common/a/hub.h").write_text("// Other words.\n" + FILES["common/a/hub.h"])
    assert plan() == clean_list.Plan([], [], [])


def test_a_header_that_moved_is_a_neighbours_change(tree):
    (tree / "common/a/moved.h").write_text(FILES["common/a/hub.h"])
    (tree / "common/b/b.cc").write_text('#include "common/a/moved.h"\n' + FILES["common/b/b.cc"])
    assert plan() == clean_list.Plan([], ["common/b/b.cc"], [])


@pytest.mark.parametrize("one, other, same", [
    (b"f(1,\n  2);  // Two.", b"f(1, 2);", True),
    (b'f("http://a", 1);', b'f("http://a", 2);', False),
    (b"f(R\"(a // b)\", 1);", b"f(R\"(a // b)\", 2);", False),
    (b"f('\"', 1'000);  // '\"'", b"f('\"', 2'000);", False),
    (b"f(/*first=*/1);", b"f(/*second=*/1);", False),
    (b'#include "a/b.h"\nf(1);', b'#include "a/c.h"\nf(1);', True),
    (b"#include <map>\nf(1);", b"#include <set>\nf(1);", False),
])
def test_what_is_linted_of_a_text(one, other, same):
    assert (clean_list.linted_text(one) == clean_list.linted_text(other)) == same


def test_a_comment_that_silences_a_finding_is_linted(tree):
    (tree / "common/b/b.cc").write_text("// NOLINTNEXTLINE(some-check)\n" + FILES["common/b/b.cc"])
    assert plan().changed == ["common/b/b.cc"]


def test_a_hub_is_read_through_the_nearest_and_the_rest_is_named(tree):
    (tree / "common/a/hub.h").write_text("int other;\n")
    made = plan()
    assert made.changed == [] and made.neighbours[0] == "common/a/a.cc"
    assert len(made.neighbours) == clean_list.NEIGHBOURS_MAX
    assert len(made.left) == 22 - clean_list.NEIGHBOURS_MAX


def test_a_changed_proto_counts_as_the_header_made_of_it(tree):
    (tree / "proto/q.proto").write_text("message Other {}\n")
    assert plan().neighbours == ["common/b/b.cc"]


@pytest.mark.parametrize("path", clean_list.CONFIGURATION)
def test_another_configuration_lints_everything(tree, path):
    (tree / path).write_text("other\n")
    assert len(plan().changed) == 22


def test_lines_of_two_branches_stand_side_by_side(tree):
    before = clean_list.read()
    (tree / "common/b/b.cc").write_text("int mine;\n")
    mine = clean_list.Tree().line("common/b/b.cc")
    clean_list.write(before | {mine})
    assert plan().sources == []
    (tree / "common/b/b.cc").write_text(FILES["common/b/b.cc"])
    assert plan().sources == []


def test_a_file_that_went_leaves_no_trace_in_the_next_list(tree):
    (tree / "common/b/b.cc").unlink()
    made = clean_list.Tree()
    assert "common/b/b.cc" not in made.sources
    assert not any(line.startswith("common/b/b.cc ") for line in made.lines(made.sources))
