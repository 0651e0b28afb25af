"""The committed renders: every file of deploy/helm/examples and every overlay of k8s/.

    /usr/bin/python3 tests/checks/deploy.py --goldens      rewrites them

Dashboards and rules are files of deploy/ word for word, so a golden names them instead of repeating them: whoever
changes an alert need not render anything.
"""

import json
import pathlib
import sys

import yaml

from kit import EXAMPLES, GOLDEN, OVERLAYS, ROOT, render_chart, render_overlay

DASHBOARDS = ROOT / "deploy/grafana/dashboards"
RULES = ROOT / "deploy/prometheus/rules"


def rule_groups():
    return [group for path in sorted(RULES.glob("*.yaml"))
            for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]]


def without_runbook_prefix(groups):
    """Groups with `docs/runbook.md` before each anchor, whatever the values put there."""
    text = json.dumps(groups)
    for group in groups:
        for rule in group["rules"]:
            url = rule.get("annotations", {}).get("runbook_url", "")
            text = text.replace(json.dumps(url), json.dumps("docs/runbook.md" + url[url.find("#"):])) if url else text
    return json.loads(text)


def normal(text):
    """A render as its golden has it: sorted, without comments, files of deploy/ by name."""
    found = [one for one in yaml.safe_load_all(text) if one]
    for one in found:
        for key, value in (one.get("data") or {}).items() if one["kind"] == "ConfigMap" else ():
            source = DASHBOARDS / key
            if source.exists() and json.loads(value) == json.loads(source.read_text(encoding="utf-8")):
                one["data"][key] = f"(deploy/grafana/dashboards/{key})"
        if one["kind"] == "PrometheusRule" and without_runbook_prefix(one["spec"]["groups"]) == rule_groups():
            one["spec"]["groups"] = "(deploy/prometheus/rules)"
    found.sort(key=lambda one: (one["kind"], one["metadata"]["name"]))
    return yaml.safe_dump_all(found, sort_keys=True, width=120)


def renders():
    """{path of a golden: function that makes its text}."""
    made = {GOLDEN / "chart" / path.name: lambda path=path: normal(render_chart(files=[path])) for path in EXAMPLES}
    made[GOLDEN / "chart" / "defaults.yaml"] = lambda: normal(render_chart())
    made.update({GOLDEN / "overlays" / f"{path.name}.yaml": lambda path=path: normal(render_overlay(path))
                 for path in OVERLAYS})
    return made


def main():
    for path, make in renders().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make(), encoding="utf-8")
        print(path.relative_to(ROOT))
    for stale in set(pathlib.Path(GOLDEN).glob("*/*.yaml")) - set(renders()):
        stale.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
