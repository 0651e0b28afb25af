"""Writes what the chart has from elsewhere: its schema and files/, and the monitoring files of k8s/.

Options come from the table in config.proto, rules from deploy/prometheus, dashboards from deploy/grafana. Helm and
kustomize read nothing outside of their own directories, so these are copies; tests/tools/test_helm_chart.py
holds them against their sources. `./dev docs` runs this.
"""

import json
import pathlib
import sys

import option_table
import schema

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CHART = HERE / "baton"
MONITORING = ROOT / "k8s/components/monitoring"
RULES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yaml"))
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))


def files():
    """{path: text} of everything that is generated."""
    options = option_table.read()
    known = {option.name: {"default": option.default, "roles": list(option.roles)}
             for option in options if option.roles}
    made = {
        CHART / "values.schema.json": json.dumps(schema.schema(options), indent=1) + "\n",
        CHART / "files/options.json": json.dumps(known, indent=1) + "\n",
    }
    made.update({CHART / "files/rules" / path.name: path.read_text(encoding="utf-8") for path in RULES})
    made.update({CHART / "files/dashboards" / path.name: path.read_text(encoding="utf-8") for path in DASHBOARDS})
    made.update({MONITORING / "dashboards" / path.name: path.read_text(encoding="utf-8") for path in DASHBOARDS})
    made[MONITORING / "rules.yaml"] = prometheus_rule()
    return made


def prometheus_rule():
    """The rules' own text, moved under the object's spec."""
    groups = "".join(_groups(path.read_text(encoding="utf-8")) for path in RULES)
    return (f"# Made by deploy/helm/generate.py from {', '.join(str(path.relative_to(ROOT)) for path in RULES)}.\n"
            "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: baton\n"
            "  labels: {app.kubernetes.io/name: baton, app.kubernetes.io/instance: baton}\nspec:\n  groups:\n" + groups)


def _groups(text):
    head, _, groups = text.partition("groups:\n")
    assert all(line.startswith("#") for line in head.splitlines()), "rules begin with comments and `groups:`"
    return "".join(f"  {line}" if line.strip() else line for line in groups.splitlines(True))


def main():
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
