"""The chart as far as Debian's packages can tell: generated files, the schema, the committed renders.

`./dev check deploy` renders; this reads. A failure of the first test is mended by `./dev docs`.
"""

import json
import pathlib
import re
import sys

import jsonschema
import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy" / "helm"))

import generate  # noqa: E402
import option_table  # noqa: E402
import schema  # noqa: E402

CHART = ROOT / "deploy/helm/baton"
GOLDENS = sorted((ROOT / "tests/deploy/golden").glob("*/*.yaml"))
OPTIONS_PAGE = (ROOT / "docs/options.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def options():
    return option_table.read()


@pytest.fixture(scope="module")
def committed():
    return json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))


def values(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted(generate.files()), ids=lambda path: str(path.relative_to(ROOT)))
def test_generated_files_are_up_to_date(path):
    assert path.exists() and path.read_text(encoding="utf-8") == generate.files()[path], "run ./dev docs"


def test_nothing_generated_is_left_over():
    for folder in (CHART / "files/rules", CHART / "files/dashboards", generate.MONITORING / "dashboards"):
        assert set(folder.iterdir()) <= set(generate.files())


def test_chart_and_manifests_are_of_this_version():
    labels = (ROOT / "common/telemetry/metrics_labels.h").read_text(encoding="utf-8")
    version = re.search(r'kBatonVersion\[\] = "([^"]+)"', labels).group(1)
    assert values(CHART / "Chart.yaml")["appVersion"] == version
    images = {line.split("image: ")[1].strip() for path in (ROOT / "k8s/base").glob("*.yaml")
              for line in path.read_text(encoding="utf-8").splitlines() if line.strip().startswith("image: ")}
    assert images == {f"localhost/baton:{version}"}


def test_every_option_can_be_set_or_is_derived(options, committed):
    settable = set(committed["properties"]["options"]["properties"])
    for option in options:
        if option.roles:
            assert (option.name in settable) != (option.name in schema.MANAGED), option.name
            assert f"`--{option.name.replace('_', '-')}`" in OPTIONS_PAGE
    assert settable <= {option.name for option in options}


def test_a_role_takes_its_own_options_alone(options, committed):
    for role in ("router", "prefill", "decode"):
        own = set(committed["properties"][role]["properties"]["options"]["properties"])
        # A chain's pods are prefill's in either mode; which options the mode takes the render checks.
        roles = {"prefill", "colocated"} if role == "prefill" else {role}
        assert own == {option.name for option in schema.settable(options) if roles & set(option.roles)}


def test_defaults_of_options_pass_their_schemas(options, committed):
    for option in schema.settable(options):
        if option.default:
            is_text = option.kind in ("string", "fraction") or option.default == "auto"
            given = option.default if is_text else json.loads(option.default)
            jsonschema.validate(given, committed["properties"]["options"]["properties"][option.name])


def objects(node, where=""):
    """Every schema of an object, with its place."""
    if isinstance(node, dict):
        if node.get("type") == "object" or "properties" in node:
            yield where, node
        for key, value in node.items():
            if key not in ("enum", "const", "default"):
                yield from objects(value, f"{where}/{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from objects(value, f"{where}/{index}")


def test_no_object_takes_unknown_names(committed):
    found = [(where, node) for where, node in objects(committed) if node.get("type") == "object"]
    assert len(found) > 80
    for where, node in found:
        extra = node.get("additionalProperties")
        # A map of the user's own names (labels) has one schema for all values, and no properties.
        assert extra is False or (isinstance(extra, dict) and "properties" not in node), where


def test_the_schema_is_draft_07(committed):
    jsonschema.Draft7Validator.check_schema(committed)
    assert committed["$schema"] == "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize("path", [CHART / "values.yaml", *sorted((ROOT / "deploy/helm/examples").glob("*.yaml"))],
                         ids=lambda path: path.stem)
def test_values_pass_the_schema(path, committed):
    errors = list(jsonschema.Draft7Validator(committed).iter_errors(values(path)))
    assert not errors, errors[0].message


def test_every_value_has_a_default(committed):
    """A name of the schema that values.yaml lacks would be one that nobody is told of."""
    def compare(node, given, where):
        for name, inner in node.get("properties", {}).items():
            if where.endswith("/options") or (where, name) == ("", "global"):
                continue
            assert name in given, f"{where}/{name} is in the schema and not in values.yaml"
            if "$ref" in inner and inner["$ref"].endswith("autoscaling"):
                inner = committed["definitions"]["autoscaling"]
            if isinstance(given[name], dict) and not where.endswith("/probes"):
                compare(inner, given[name], f"{where}/{name}")
    compare(committed, values(CHART / "values.yaml"), "")


@pytest.mark.parametrize("wrong", [
    {"unknown": 1}, {"options": {"page_size": 48}}, {"options": {"pp_size": 2}},
    {"router": {"options": {"threads": 1}}}, {"decode": {"affinity": {"unknown": {}}}},
    {"prefill": {"parallelism": {"pp": 0}}}, {"drain": {"timeoutSeconds": "1"}},
], ids=json.dumps)
def test_wrong_values_do_not_pass(wrong, committed):
    assert list(jsonschema.Draft7Validator(committed).iter_errors(wrong))


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_options_in_a_golden_exist(path, options):
    """A renamed option fails here, without Helm."""
    roles = {option.name: option.roles for option in options}
    found = {}
    for one in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        if one["kind"] == "ConfigMap" and "options.yaml" in one["data"]:
            role = one["metadata"].get("labels", {}).get("app.kubernetes.io/component") or \
                one["metadata"]["name"].split("-")[1]
            found[role] = yaml.safe_load(one["data"]["options.yaml"])
    if found["prefill"]["disaggregation_mode"] == "null":
        found["colocated"] = found.pop("prefill")
    assert set(found) in ({"router", "prefill", "decode"}, {"router", "colocated"})
    for role, given in found.items():
        assert all(role in roles.get(name, ()) for name in given), f"{role}: {sorted(given)}"


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_variables_in_a_golden_are_options(path, options):
    """A process refuses a BATON_* variable that is none."""
    known = {"BATON_" + option.name.upper() for option in options}
    text = path.read_text(encoding="utf-8")
    names = {word.split(":")[-1].strip() for word in text.splitlines() if word.strip().startswith(("name: BATON_",
                                                                                                  "- name: BATON_"))}
    assert names and names <= known
