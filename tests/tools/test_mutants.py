"""What `./dev check mutants` draws, leaves out, remembers and reports; and, where libclang is there, what it finds."""

import json
import pathlib
import sys

import pytest
import yaml

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path[:0] = [str(TOOLS / "dev"), str(TOOLS / "mutants"), str(TOOLS.parent / "tests" / "checks")]

import planted as check  # noqa: E402
import report  # noqa: E402
import text  # noqa: E402
from mutations import Equivalents, Mutation, apply_all, named, order, planted  # noqa: E402
from state import State, cached  # noqa: E402

SOURCE = b"""int F(int a, int b) {
  if (a < b &&
      b < 7) return a;
  return b;
}
"""


def mutation(old, new, kind="shifted bound", source=SOURCE):
    begin = source.index(old.encode())
    return Mutation("a.cc", begin, begin + len(old), new, kind, "F")


def test_lines_stay_where_they_are():
    dropped = mutation("a < b &&\n      b < 7", "b < 7", "dropped condition").apply(SOURCE)
    assert dropped.count(b"\n") == SOURCE.count(b"\n")
    assert dropped.splitlines()[3] == b"  return b;"


def test_a_mutation_is_named_by_its_lines():
    assert mutation("<", "<=").lines(SOURCE) == ("if (a < b &&", "if (a <= b &&")
    moved = b"// A comment.\n" + SOURCE
    assert mutation("<", "<=", source=moved).lines(moved) == mutation("<", "<=").lines(SOURCE)
    assert mutation("<", "<=", source=moved).key(moved) != mutation("<", "<=").key(SOURCE)


def test_a_diff_applies():
    diff = mutation("b < 7", "b <= 7").diff(SOURCE)
    assert "-      b < 7) return a;\n+      b <= 7) return a;\n" in diff


def test_a_sample_takes_one_mutation_of_a_site_and_grows_at_its_end():
    all_of_them = [Mutation("a.cc", at, at + 1, other, "changed constant", "F") for at in range(100) for other in "xyz"]
    drawn = order(all_of_them, "7")
    assert len(drawn) == len({m.site for m in drawn}) == 100
    assert drawn == order(list(reversed(all_of_them)), "7")
    assert drawn != order(all_of_them, "8")
    assert {m.text for m in drawn} == {"x", "y", "z"}


def test_equivalents_are_matched_by_text_and_stale_ones_are_found():
    entries = [{"file": "a.cc", "from": "if (a <  b &&", "to": "if (a <= b &&", "why": "equal numbers are either"},
               {"file": "a.cc", "from": "gone();", "to": ";", "why": "nothing"}]
    known = Equivalents(entries)
    listed, other = mutation("<", "<="), mutation("b < 7", "b <= 7")
    assert known.why(listed, SOURCE) == "equal numbers are either"
    assert known.why(other, SOURCE) is None
    assert known.stale([listed, other], {"a.cc": SOURCE}) == [entries[1]]
    with pytest.raises(ValueError, match="why"):
        Equivalents([{"file": "a.cc", "from": "x", "to": "y", "why": " "}])


def test_equal_lines_are_told_apart_by_the_line_before():
    source = b"if (a)\n  f();\nif (b)\n  f();\n"
    first = Mutation("a.cc", 9, 12, "", "dropped statement", "F")
    second = Mutation("a.cc", 23, 26, "", "dropped statement", "F")
    assert first.lines(source) == second.lines(source) == ("f();", ";")
    known = Equivalents([{"file": "a.cc", "after": "if (b)", "from": "f();", "to": ";", "why": "b is never true"}])
    assert known.why(first, source) is None
    assert known.why(second, source) == "b is never true"
    assert known.stale([first], {"a.cc": source}) and not known.stale([second], {"a.cc": source})


def test_a_killed_run_loses_only_the_line_it_was_writing(tmp_path):
    State(tmp_path, "tree").add({"key": "one", "outcome": "judged"})
    with open(tmp_path / "verdicts" / "tree.jsonl", "a", encoding="utf-8") as file:
        file.write('{"key": "tw')
    resumed = State(tmp_path, "tree")
    resumed.add({"key": "three", "outcome": "refused"})
    assert sorted(State(tmp_path, "tree").verdicts) == ["one", "three"]
    assert not State(tmp_path, "another tree").verdicts


def test_a_cached_value_is_computed_once(tmp_path):
    calls = []
    for _ in range(2):
        assert cached(tmp_path / "deep" / "value.json", lambda: calls.append(1) or {"a": 1}) == {"a": 1}
    assert calls == [1]


def verdict(units, simulation, path="a.cc"):
    return {"path": path, "kind": "shifted bound", "function": "F", "units": units, "simulation": simulation,
            "diff": f"--- {units} {simulation}\n"}


def test_rates_and_survivors(tmp_path):
    verdicts = [verdict("a_test", "seed 3"), verdict("a_test", None), verdict(None, "seed 9", "b.cc"),
                verdict(None, None)]
    expected = {"mutants": 4, "killed": 3, "killed_by_units": 2, "killed_by_simulation": 2}
    assert report.counts(verdicts) == expected
    assert [line.split() for line in report.table(verdicts, "path", "file").splitlines()[1:]] == [
        ["a.cc", "3", "67", "%", "67", "%", "33", "%"], ["b.cc", "1", "100", "%", "0", "%", "100", "%"],
        ["all", "4", "75", "%", "50", "%", "50", "%"]]
    shown = report.survivors(verdicts)
    assert shown.index("--- None None") < shown.index("--- None seed 9") < shown.index("--- a_test None")
    assert "--- a_test seed 3" not in shown
    report.write_json(tmp_path / "out.json", verdicts, {"seed": "1"})
    written = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert {key: written[key] for key in expected} == expected


def test_named_mutants_stand_in_their_file_once():
    sources = {"a.cc": b"f(); g(); g();"}
    entry = {"what": "f", "file": "a.cc", "from": "f()", "to": "h()"}
    (only,) = named([entry], sources.get)
    assert only.apply(sources["a.cc"]) == b"h(); g(); g();"
    for text_ in ("g()", "x()"):
        with pytest.raises(ValueError, match="times in its file"):
            named([{**entry, "from": text_}], sources.get)


def of_the_tree(name):
    """(the entries of a list in tools/mutants, what reads the files that they name)."""
    root = pathlib.Path(__file__).resolve().parents[2]
    entries = yaml.safe_load((root / "tools/mutants" / name).read_text(encoding="utf-8"))
    return entries, lambda path: (root / path).read_bytes()


def test_every_named_mutant_can_be_made():
    entries, sources = of_the_tree("named.yaml")
    assert len(named(entries, sources)) == len(entries) > 10


def test_a_planted_bug_is_one_patch_of_several_places():
    sources = {"a.cc": b"f(); g(); h();", "b.cc": b"x();"}
    bug = {"name": "bug", "effect": "none", "file": "a.cc", "from": "g", "to": "gg",
           "also": [{"file": "a.cc", "from": "f", "to": "ff"}, {"file": "b.cc", "from": "x();", "to": ""}]}
    made = planted([bug], sources.get)["bug"]
    assert apply_all([m for m in made if m.path == "a.cc"], sources["a.cc"]) == b"ff(); gg(); h();"
    assert apply_all(reversed(made[2:]), sources["b.cc"]) == b""
    with pytest.raises(ValueError, match="two planted bugs are called bug"):
        planted([bug, bug], sources.get)
    with pytest.raises(ValueError, match="bug: its text stands 3 times in its file"):
        planted([{**bug, "from": "()"}], sources.get)


def test_every_planted_bug_can_be_made():
    entries, sources = of_the_tree("planted.yaml")
    made = planted(entries, sources)
    assert len(made) == len(entries) > 90
    for entry in entries:
        mutations = made[entry["name"]]
        assert entry["effect"] and all(sources(m.path)[m.begin:m.end].decode() != m.text for m in mutations)
        for path in {m.path for m in mutations}:
            of_file = sorted((m for m in mutations if m.path == path), key=lambda m: m.begin)
            assert all(one.end <= other.begin for one, other in zip(of_file, of_file[1:])), "patches overlap"


@pytest.mark.parametrize("built, code, output, caught, what", [
    ("ok", 1, "seed 7: two tokens at once\n  storm\n", True, "seed 7: two tokens at once"),
    ("ok", 0, "3000 seeds, 9 of 9 requests answered\n", False, "3000 seeds keep every promise"),
    ("ok", -6, "check failed\n", False, "the simulation ended with -6: check failed"),
    ("ok", 2, "", False, "the simulation ended with 2: no output"),
    ("equivalent", 1, "seed 7: x\n", False, "the patch changes nothing"),
    ("refused", 1, "seed 7: x\n", False, "the patch does not compile")])
def test_only_a_broken_promise_catches_a_planted_bug(built, code, output, caught, what):
    class Fake:
        def build(self, *mutations):
            assert mutations == ("mutation",)
            return built

        def program(self, label):
            return label, "folder"

        def run(self, program, library, arguments, _):
            assert (program, library) == ("//tests/sim:sim", "folder") and arguments == ["--seed=1", "--seeds=3000"]
            return code, output

    assert check.catch(Fake(), Fake(), ["mutation"]) == (caught, what)


def test_parentheses_close_after_strings_and_separators():
    source = b"for (int i = 2'000; s[i] != ')' && t != \")\\\"\" /* ) */; ++i) x();"
    begin, end, semicolons = text.parentheses(source, 0)
    assert source[end:] == b") x();" and source[begin:].startswith(b"int i")
    assert [source[at:at + 2] for at in semicolons] == [b"; ", b"; "]


@pytest.mark.parametrize("literal, others", [
    ("0", ["1"]), ("1", ["0", "2"]), ("7u", ["6u", "8u"]), ("0x10", ["15", "17"]),
    ("2'000'000", ["1000000", "4000000"]), ("1.5", [])])
def test_other_integers(literal, others):
    assert text.other_integers(literal) == others


CORE = """enum class Color { kRed, kGreen, kBlue };
int StrCat(int, int);
#define BATON_CHECK(c) if (!(c)) __builtin_trap()
#define BATON_RETURN_IF_ERROR(c) do { if (c) return 9; } while (false)
int Min(int a, int b);
struct S {
  int F(int a, int b, Color c) {
    BATON_CHECK(a > 1);
    BATON_RETURN_IF_ERROR(a > 2);
    if (a >= b) return Min(a, b);
    if (c == Color::kGreen && !on) total += StrCat(5, 6);
    return total;
  }
  const char* Name() { return on ? "on" : "off"; }
  bool CheckInvariants() const { return total > 100; }
  bool on = false;
  int total = 0;
};
"""


def test_finds_what_a_core_can_do_wrong(tmp_path, monkeypatch):
    pytest.importorskip("clang.cindex", reason="python3-clang is there where `./dev check mutants` was run")
    import sites
    monkeypatch.chdir(tmp_path)
    (tmp_path / "core.h").write_text(CORE)
    found, calls = sites.find("core.h", CORE.encode(), ["-std=c++20"])
    checks = sites.what_only_checks_call(calls, lambda path: True)
    seen = sorted((CORE[m.begin:m.end].strip(), m.text.strip(), m.kind) for usr, m in found if usr not in checks)
    assert seen == sorted([
        ("BATON_RETURN_IF_ERROR(a > 2)", "", "dropped statement"),
        ("a >= b", "!(a >= b)", "negated condition"),
        (">=", ">", "shifted bound"),
        ("return Min(a, b)", "", "dropped statement"),
        ("a, b", "b, a", "swapped argument"),
        ("c == Color::kGreen && !on", "!(c == Color::kGreen && !on)", "negated condition"),
        ("c == Color::kGreen && !on", "c == Color::kGreen", "dropped condition"),
        ("c == Color::kGreen && !on", "!on", "dropped condition"),
        ("==", "!=", "negated condition"),
        ("Color::kGreen", "Color::kRed", "changed constant"),
        ("Color::kGreen", "Color::kBlue", "changed constant"),
        ("!on", "on", "negated condition"),
        ("total += StrCat(5, 6)", "", "dropped statement"),
        ("+=", "-=", "changed operator"),
    ])


WITHOUT_EFFECT = """namespace std {
template <typename T> struct initializer_list { const T* begin; unsigned long size; };
template <typename T> T max(const T& a, const T& b) { return a < b ? b : a; }
template <typename T> T min(initializer_list<T> all) { return *all.begin; }
template <typename T> void swap(T& a, T& b) {}
}
template <int> void Covered() {}
struct List { void reserve(int); void resize(int); };
struct Pair { int a, b; };
Pair F(int a, int b, List& list) {
  Covered<7>();
  if (a < b) Covered<8>();
  if (a == b) {
    Covered<9>();
  }
  list.reserve(a);
  list.resize(a);
  std::swap(a, b);
  return {std::max(a, b), std::min({a, b})};
}
"""


def test_leaves_alone_what_can_make_no_difference(tmp_path, monkeypatch):
    pytest.importorskip("clang.cindex", reason="python3-clang is there where `./dev check mutants` was run")
    import sites
    monkeypatch.chdir(tmp_path)
    (tmp_path / "core.cc").write_text(WITHOUT_EFFECT)
    found, _ = sites.find("core.cc", WITHOUT_EFFECT.encode(), ["-std=c++20"])
    begin = WITHOUT_EFFECT.index("Pair F(")
    seen = sorted((WITHOUT_EFFECT[m.begin:m.end].strip(), m.text.strip()) for _, m in found if m.begin > begin)
    assert seen == sorted([
        ("list.resize(a)", ""), ("std::swap(a, b)", ""), ("max", "min"), ("min", "max"),
        ("std::max(a, b), std::min({a, b})", "std::min({a, b}), std::max(a, b)")])
