"""What is committed is what chart and overlays render now."""

import pytest

from goldens import GOLDEN, normal, renders, rule_groups
from kit import ROOT, Objects, render_chart
import yaml


@pytest.mark.parametrize("path", sorted(renders()), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_golden_is_what_is_rendered(path):
    hint = "run /usr/bin/python3 tests/checks/deploy.py --goldens and look at the difference"
    assert path.exists(), f"no golden {path.relative_to(ROOT)}: {hint}"
    assert renders()[path]() == path.read_text(encoding="utf-8"), hint


def test_no_golden_is_left_over():
    assert set(GOLDEN.glob("*/*.yaml")) == set(renders())


def test_the_rules_in_the_chart_are_those_that_are_tested():
    rendered = Objects(render_chart({"monitoring": {"prometheusRule": {"enabled": True}}}))
    assert rendered.get("PrometheusRule", "baton")["spec"]["groups"] == rule_groups()


def test_renders_are_repeatable():
    assert normal(render_chart()) == normal(render_chart())


def test_every_document_is_an_object_with_a_kind_and_a_name():
    for found in yaml.safe_load_all(render_chart({"monitoring": {"dashboards": {"enabled": True}}})):
        assert found is None or (found["kind"] and found["metadata"]["name"])
