"""What is said of proto/ outside of C++: nothing released changes its meaning, and docs/api.md is current."""

import pathlib
import shutil
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "proto"), str(ROOT / "tools" / "docs")]

import api_page  # noqa: E402
import baseline  # noqa: E402
import descriptors  # noqa: E402


@pytest.fixture
def changed(tmp_path):
    """What differs from the real contracts after replacing a text in one file."""
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    before = descriptors.load(tmp_path)

    def change(name, old, new):
        path = tmp_path / "proto/baton/v1" / name
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {name}"
        path.write_text(text.replace(old, new), encoding="utf-8")
        return baseline.differences(before, descriptors.load(tmp_path))
    return change


def test_nothing_of_the_baseline_is_read_otherwise():
    assert baseline.differences(baseline.read(), descriptors.load()) == []


def test_the_baseline_covers_the_contracts():
    known = descriptors.types(baseline.read())
    assert {"baton.v1.GenerateRequest", "baton.v1.FinishReason", "baton.v1.Ticket"} <= set(known)
    assert "baton.v1.Inference" in descriptors.services(baseline.read())
    assert not [name for name in known if "Options" in name], "the option table is no contract"


@pytest.mark.parametrize("name, old, new, complaint", [
    ("inference.proto", "  int32 cached_tokens = 3;", "", "Usage.cached_tokens = 3 is gone"),
    ("inference.proto", "int32 cached_tokens = 3;", "int32 cached_tokens = 9;", "Usage.cached_tokens = 3 is gone"),
    ("inference.proto", "int32 cached_tokens = 3;", "int64 cached_tokens = 3;", "was int32 and is int64"),
    ("inference.proto", "int32 cached_tokens = 3;", "repeated int32 cached_tokens = 3;", "is repeated int32"),
    ("inference.proto", "int32 cached_tokens = 3;", "optional int32 cached_tokens = 3;", "is optional int32"),
    ("inference.proto", "int32 cached_tokens = 3;", "int32 reused_tokens = 3;", "is called reused_tokens now"),
    ("inference.proto", "Usage usage = 4;", "oneof some { Usage usage = 4; }", "has changed its oneof"),
    ("inference.proto", "rpc Detokenize(DetokenizeRequest) returns (DetokenizeResponse);", "", "Detokenize is gone"),
    ("inference.proto", "Generate(GenerateRequest) returns (stream", "Generate(GenerateRequest) returns (",
     "server_streaming was True"),
    ("common.proto", "FINISH_REASON_ABORT = 3;", "FINISH_REASON_ABORT = 4;", "FINISH_REASON_ABORT = 3 is gone"),
    ("cluster.proto", "map<int32, fixed64> layer_hashes", "map<int64, fixed64> layer_hashes", "is map<int64, fixed64>"),
])
def test_a_break_is_found(changed, name, old, new, complaint):
    found = changed(name, old, new)
    assert any(complaint in line for line in found), found


@pytest.mark.parametrize("name, old, new", [
    ("inference.proto", "  int32 cached_tokens = 3;", "  reserved 3;\n  reserved \"cached_tokens\";"),
    ("inference.proto", "int32 cached_tokens = 3;", "int32 cached_tokens = 3;\n  int32 another = 99;"),
    ("inference.proto", "message AbortRequest {", "message Another {}\nmessage AbortRequest {"),
])
def test_what_old_peers_do_not_notice_is_allowed(changed, name, old, new):
    assert changed(name, old, new) == []


def test_api_page_is_current():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert text == api_page.markdown(), "./dev docs writes docs/api.md anew"


def test_every_route_of_the_router_is_in_the_table():
    """Both ways: the table of services/router/http/README.md and the routes that its handler adds."""
    assert api_page.documented_routes() == api_page.routes_in_code()
