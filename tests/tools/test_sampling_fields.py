"""A field of sampling has few places: CONTRIBUTING names them, and no other file has to know it."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The line of the proto, its range, its HTTP name, and where it is read.
PLACES = {"proto/baton/v1/common.proto", "common/engine/sampling/check_sampling.cc",
          "services/router/http/request_sampling.cc", "common/engine/sampling/token_sampler.cc",
          "common/engine/sampling/sampling_params.h", "common/engine/sampling/sampler.cc"}
# A field that has a default in the model's generation_config.json.
DEFAULTS = {"common/model/generation_defaults.h", "common/model/generation_defaults.cc", "services/router/validate.cc"}


def files_with(word):
    """Sources that clients' fields pass through and that name this one."""
    listed = subprocess.run(["git", "ls-files", "proto/baton/v1/common.proto", "common/engine", "common/model",
                             "services/router"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    sources = [path for path in listed if re.search(r"(?<!_test)\.(cc|h|proto)$", path)]
    return {path for path in sources
            if re.search(rf"\b(set_|has_)?{word}\b", (ROOT / path).read_text(encoding="utf-8"))}


def test_min_p_has_a_line_a_range_a_name_and_its_reader():
    assert files_with("min_p") == PLACES | DEFAULTS


def test_every_field_has_an_http_name_or_a_reader_of_its_own():
    proto = (ROOT / "proto/baton/v1/common.proto").read_text(encoding="utf-8")
    message = re.search(r"message SamplingParams \{(.*?)\n\}", proto, re.DOTALL).group(1)
    fields = set(re.findall(r"^  (?:optional |repeated )?\w+ (\w+) = \d+;", message, re.MULTILINE))
    assert "min_p" in fields and len(fields) >= 18
    reader = (ROOT / "services/router/http/request_sampling.cc").read_text(encoding="utf-8")
    named = set(re.findall(r'^      \{"(\w+)", \{"', reader, re.MULTILINE))
    assert fields - named == {"logprobs", "top_logprobs", "prompt_logprobs", "structure", "drawn_tokens"}
