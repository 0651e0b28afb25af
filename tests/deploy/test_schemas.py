"""Every render against the schemas of Kubernetes 1.29 to 1.34 and of the CRDs, unknown fields refused.

What a schema cannot say, the CRDs' rules in CEL and the API server's own validation, is left to
`./dev check kubernetes`.
"""

import copy
import os
import pathlib
import subprocess

import jsonschema
import pytest
import yaml

from kit import EXAMPLES, LATEST, OVERLAYS, Refused, render_chart, render_overlay

VERSIONS = ("1.29", "1.30", "1.31", "1.32", "1.33", "1.34")
CUSTOM = {"PodMonitor", "PrometheusRule", "ScaledObject", "LeaderWorkerSet", "DisaggregatedSet", "HTTPRoute",
          "GRPCRoute"}
NEEDS_1_33 = {"disaggregatedset"}  # The model as an OCI volume.


def check(path, version):
    """What the validator has to say of a file of Kubernetes' own kinds."""
    done = subprocess.run([os.environ["KUBERNETES_VALIDATE"], "-k", version, "--strict", "--quiet", path],
                          capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def own_kinds(text, path):
    """Writes the objects that are no CRD's."""
    found = [one for one in yaml.safe_load_all(text) if one and one["kind"] not in CUSTOM]
    assert found
    path.write_text(yaml.safe_dump_all(found), encoding="utf-8")
    return path


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_a_chart_render_is_valid(example, version, tmp_path):
    if example.stem in NEEDS_1_33 and version < "1.33":
        with pytest.raises(Refused, match="needs Kubernetes 1.33"):
            render_chart(files=[example], version=f"{version}.0")
        return
    code, said = check(own_kinds(render_chart(files=[example], version=f"{version}.0"), tmp_path / "r.yaml"), version)
    assert code == 0 and not said, said


@pytest.mark.parametrize("version", VERSIONS[1:])  # A hook that sleeps came with 1.30.
@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_an_overlay_is_valid(overlay, version, tmp_path):
    code, said = check(own_kinds(render_overlay(overlay), tmp_path / "r.yaml"), version)
    assert code == 0 and not said, said


def test_the_validator_finds_a_wrong_field(tmp_path):
    wrong = render_chart().replace("terminationGracePeriodSeconds", "terminationGraceSeconds")
    code, said = check(own_kinds(wrong, tmp_path / "r.yaml"), "1.34")
    assert code != 0 and "terminationGraceSeconds" in said


def strict(schema):
    """A CRD's OpenAPI schema as JSON Schema that refuses fields it does not have."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: value if key in ("enum", "default", "required") else
            {name: strict(one) for name, one in value.items()} if key == "properties" else strict(value)
            for key, value in schema.items() if not key.startswith("x-kubernetes") and key != "format"}
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
        made.pop("pattern", None)
    if isinstance(made.get("properties"), dict) and made.get("type") == "object" and \
            "additionalProperties" not in made and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = False
    return made


def custom_schemas():
    """{(apiVersion, kind): schema}."""
    made = {}
    for path in sorted(pathlib.Path(os.environ["CRDS"]).glob("*.yaml")):
        for crd in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if not crd or crd["kind"] != "CustomResourceDefinition":
                continue
            for version in crd["spec"]["versions"]:
                schema = strict(copy.deepcopy(version["schema"]["openAPIV3Schema"]))
                # The API server checks metadata by a schema of its own.
                schema["properties"]["metadata"] = {"type": "object"}
                made[f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"]] = schema
    return made


@pytest.fixture(scope="module")
def schemas():
    return custom_schemas()


def wrong_customs(text, schemas):
    """(how many custom objects there are, what is wrong with them)."""
    found = [one for one in yaml.safe_load_all(text) if one and one["kind"] in CUSTOM]
    wrong = []
    for one in found:
        validator = jsonschema.Draft7Validator(schemas[one["apiVersion"], one["kind"]])
        wrong += [f"{one['kind']}/{one['metadata']['name']} {'/'.join(map(str, error.path))}: {error.message[:300]}"
                  for error in validator.iter_errors(one)]
    return len(found), wrong


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_custom_objects_of_the_chart_are_valid(example, schemas):
    everything = {"monitoring": {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}}
    count, wrong = wrong_customs(render_chart(everything, files=[example], version=LATEST), schemas)
    assert count >= 3 and wrong == []


@pytest.mark.parametrize("overlay", [path for path in OVERLAYS if path.name in ("four-stages-two-decodes", "gpu-rdma")],
                         ids=lambda path: path.name)
def test_custom_objects_of_an_overlay_are_valid(overlay, schemas):
    count, wrong = wrong_customs(render_overlay(overlay), schemas)
    assert count == 4 and wrong == []


def test_a_custom_object_with_an_unknown_field_is_not(schemas):
    text = render_chart({"workload": {"kind": "LeaderWorkerSet"}}).replace("startupPolicy", "startPolicy")
    _, wrong = wrong_customs(text, schemas)
    assert len(wrong) == 2 and "'startPolicy' was unexpected" in wrong[0]


def test_no_custom_kind_is_left_unchecked(schemas):
    assert {kind for _, kind in schemas} == CUSTOM
