"""Which end-to-end modules are due: on a small tree of its own, with the real rules."""

import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "dev"))

import end_to_end  # noqa: E402
from tally import Tally  # noqa: E402

FILES = {
    ".gitignore": "bazel-bin\n.cache\n",
    "bazel-bin/services/baton/baton": "binary",
    "bazel-bin/common/engine/torch/libbaton_torch.so": "plugin",
    "models/m/config.json": "{}",
    "proto/p.proto": 'syntax = "proto3";\n',
    "tools/cluster/cluster.py": "",
    "tools/lint/lint.py": "",
    "tests/oracle/oracle.py": "",
    "tests/e2e/conftest.py": "",
    "tests/e2e/test_a.py": "def test_it():\n    pass\n",
    "tests/e2e/test_b.py": 'DASHBOARDS = "deploy/grafana"\n\n\ndef test_it():\n    pass\n',
    "deploy/grafana/a.json": "{}",
    "services/router/router.cc": "",
    "README.md": "",
}
BOTH, NONE = {"test_a", "test_b"}, set()


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setattr(end_to_end, "ROOT", tmp_path)
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


def hashes(config=None):
    inputs = end_to_end.Inputs(config)
    return {path.stem: inputs.of(path) for path in end_to_end.module_paths()}


@pytest.mark.parametrize("path,due", [
    ("bazel-bin/services/baton/baton", BOTH),
    ("bazel-bin/common/engine/torch/libbaton_torch.so", BOTH),
    ("models/m/config.json", BOTH),
    ("proto/p.proto", BOTH),
    ("tools/cluster/cluster.py", BOTH),
    ("tests/oracle/oracle.py", BOTH),
    ("tests/e2e/conftest.py", BOTH),
    ("tests/e2e/helper_of_all.py", BOTH),
    ("tests/e2e/test_a.py", {"test_a"}),
    ("deploy/grafana/a.json", {"test_b"}),
    ("deploy/grafana/new.json", {"test_b"}),
    ("services/router/router.cc", NONE),  # Through the binary, if it changes that.
    ("tools/lint/lint.py", NONE),
    ("README.md", NONE),
])
def test_a_change_makes_those_due_that_read_it(tree, path, due):
    before = hashes()
    (tree / path).write_text("changed")
    assert {name for name, state in hashes().items() if state != before[name]} == due


def test_sanitizers_count_for_themselves(tree):
    assert hashes("asan") != hashes()


def run_all(again=False):
    tally = Tally()
    end_to_end.run_all(tally, None, None, again)
    return tally


def test_what_passed_is_counted_and_not_run_again(tree, monkeypatch):
    assert (run_all().passed, run_all().passed) == (2, 2)
    runs = []
    real = end_to_end.run_module
    monkeypatch.setattr(end_to_end, "run_module", lambda *args: runs.append(args[0].stem) or real(*args))
    assert run_all().passed == 2 and runs == []
    (tree / "tests/e2e/test_a.py").write_text("def test_it():\n    pass\n\n\ndef test_more():\n    pass\n")
    assert run_all().passed == 3 and runs == ["test_a"]
    assert run_all(again=True).passed == 3 and sorted(runs[1:]) == ["test_a", "test_b"]


@pytest.mark.parametrize("text,failed,skipped", [
    ("def test_it():\n    assert False\n", 1, 0),
    ("import nothing_of_this_name\n", 1, 0),
    ("import pytest\n\n\ndef test_it():\n    pytest.skip('not here')\n", 0, 1),
])
def test_what_did_not_pass_is_run_again(tree, text, failed, skipped):
    (tree / "tests/e2e/test_b.py").write_text(text)
    for _ in range(2):
        tally = run_all()
        assert (tally.passed, tally.failed, tally.skipped) == (1, failed, skipped)
    (tree / "tests/e2e/test_b.py").write_text("def test_it():\n    pass\n")
    assert (run_all().passed, run_all().failed) == (2, 0)


def test_of_modules_that_nobody_has_timed_the_long_ones_begin(tmp_path):
    passed = end_to_end.Passed(tmp_path / "none.json")
    assert passed.seconds(end_to_end.LONG[0]) > passed.seconds("test_a")
    passed.note(end_to_end.LONG[0], inputs="", passed=1, seconds=3)
    assert passed.seconds(end_to_end.LONG[0]) == 3


def test_the_long_modules_exist():
    assert set(end_to_end.LONG) <= {path.stem for path in end_to_end.module_paths()}
