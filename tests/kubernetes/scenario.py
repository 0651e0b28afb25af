"""The steps in their order, inside the sandbox: brings the node up, deploys Baton, disturbs it, takes it away.

    scenario.py WORK       reads WORK/plan.json, which tests/checks/kubernetes.py writes

Or, with "shell" in the plan, only the node and a shell to use it from.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tools" / "dev")]

import accept_steps  # noqa: E402
import configs  # noqa: E402
import disrupt_steps  # noqa: E402
import groups  # noqa: E402
import images  # noqa: E402
import leftovers  # noqa: E402
import node as nodes  # noqa: E402
import overlay_steps  # noqa: E402
import policy_steps  # noqa: E402
import refuse_steps  # noqa: E402
import release as releases  # noqa: E402
import serve_steps  # noqa: E402
import steps as step_runner  # noqa: E402
import versions  # noqa: E402

CHART = ROOT / "deploy" / "helm" / "baton"
REPOSITORY, TAG = "localhost/baton", "check"
WITHOUT_MODEL = "without-model"
PROBE_IMAGE = "localhost/probe:1"
MONITORING = {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}}


class Scenario:
    def __init__(self, work, plan):
        self.work, self.plan = work, plan
        self.steps = step_runner.Steps(plan["only"])
        self.node = nodes.Node(plan["tools"], work)

    @property
    def kube(self):
        return self.node.kube

    def release(self, namespace, tag=TAG):
        return releases.Release(self.kube, CHART, (REPOSITORY, tag), namespace)

    def run(self):
        steps = self.steps
        try:
            with steps.step(f"a node of Kubernetes {versions.kubernetes()} is Ready", self.node_logs, needed=True):
                self.node.up()
                steps.note(self.kube.kubectl("get", "nodes", "-o", "wide").strip())
            with steps.step("images and CRDs are there", self.node_logs, needed=True):
                self.import_images()
                self.install_crds()
            if self.plan["shell"]:
                return self.shell()
            self.accept()
            self.serve()
            self.refuse()
            self.overlays()
            self.groups()
        except step_runner.Abandoned as name:
            steps.note(f"the steps that need {str(name)!r} were not run")
        return 1 if steps.tally.failed else 0

    def shell(self):
        print(f"KUBECONFIG and PATH are set; the chart is {CHART}, the image {REPOSITORY}:{TAG}. "
              "Everything ends with this shell.", flush=True)
        return subprocess.run([os.environ.get("SHELL", "/bin/bash")], check=False).returncode

    def node_logs(self):
        return "\n".join(f"{path.name}:\n{path.read_text(encoding='utf-8', errors='replace')[-1500:]}"
                         for path in sorted((self.work / "log").glob("*.log")))

    def import_images(self):
        for archive in self.plan["images"]:
            self.node.import_image(archive)
        images.pack_single(self.plan["tools"]["probe"], PROBE_IMAGE, self.work / "probe.tar")
        self.node.import_image(self.work / "probe.tar")

    def install_crds(self):
        files = [name for names in self.plan["crds"].values() for name in names]
        if not files:
            return
        self.kube.kubectl("create", "--validate=false", *(f"--filename={name}" for name in files))
        self.kube.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=120s")

    @contextlib.contextmanager
    def step(self, name, release=None, needed=False):
        with self.steps.step(name, release.diagnose if release else self.node_logs, needed):
            yield

    def accept(self):
        if not self.steps.wanted("accept"):
            return
        for what, (changes, module) in accept_steps.FEATURES.items():
            with self.step(f"the API server takes {what}"):
                if module and not any(module in name for name in self.plan["crds"]):
                    raise step_runner.Skip(f"no CRDs of {module}")
                if accept_steps.lacks(CHART, changes):
                    raise step_runner.Skip(f"no {accept_steps.lacks(CHART, changes)}")
                self.steps.note(f"{accept_steps.check(self.kube, CHART, changes)} objects")

    def serve(self):
        if not self.steps.wanted("serve"):
            return
        release = self.release("serve")
        with self.step("helm install: a chain of two stages, two decodes, a router, all Ready", release, needed=True):
            release.install(releases.values(monitoring=MONITORING if self.plan["crds"] else {}))
            release.wait_ready({"router": 1, "prefill": 2, "decode": 2})
        with self.step("prompts through the Service are answered, equal ones equally", release, needed=True):
            release.wait_serving()
            expected = serve_steps.prompts_through_service(release)
            self.steps.note("\n".join(repr(prompt[:30] + "..." + text) for prompt, text in expected.items()))
        with self.step("a pod of another namespace finds the Service by its name", release):
            self.steps.note(serve_steps.from_a_pod(release, self.kube, PROBE_IMAGE, "client"))
        with self.step("two routers, each of which knows every worker", release):
            release.upgrade(router={"replicas": 2})
            release.wait_ready({"router": 2, "prefill": 2, "decode": 2})
            self.steps.note(f"{serve_steps.each_router_answers(release, expected)} answer alike")
        with self.step("every target of the PodMonitors is read", release):
            if not self.plan["crds"]:
                raise step_runner.Skip("no CRDs of Prometheus Operator")
            self.steps.note(str(serve_steps.read_metrics(self.kube, release)))
        self.disturb(release, expected)
        with self.step("NetworkPolicies, as nftables rules: strangers reach no worker, new pods join", release):
            policy_steps.check(release, self.kube, PROBE_IMAGE, self.steps)
        with self.step("helm uninstall leaves nothing", release):
            release.uninstall()
            leftovers.wait_gone(self.kube, release)
            release.delete_namespace()

    def disturb(self, release, expected):
        """Under load, in ascending order of how much goes at once."""
        for role in ("decode", "prefill", "router"):
            with self.step(f"a pod of {role} is deleted under load", release):
                with disrupt_steps.under_load(release, expected, self.steps, role):
                    disrupt_steps.delete_one(release, self.kube, role)
        with self.step("helm upgrade with changed options under load", release):
            with disrupt_steps.under_load(release, expected, self.steps, "options"):
                self.steps.note(f"replaced: {disrupt_steps.changed_option(release)}")
        with self.step("helm upgrade with a new image under load", release):
            with disrupt_steps.under_load(release, expected, self.steps, "image"):
                disrupt_steps.new_image(release, self.node, "next")
        with self.step("decode is scaled up and down under load", release):
            with disrupt_steps.under_load(release, expected, self.steps, "scale"):
                disrupt_steps.scale_decode(release, [3, 1, 2])
        with self.step("kubectl drain keeps to the disruption budget, under load", release):
            with disrupt_steps.under_load(release, expected, self.steps, "drain") as load:
                disrupt_steps.drain_node(release, self.kube, configs.NODE, load)

    def refuse(self):
        if not self.steps.wanted("refuse"):
            return
        for number, case in enumerate(refuse_steps.CASES):
            tag = {"the image is not there": "no-such-tag", "the image has no model": WITHOUT_MODEL}.get(case, TAG)
            release = self.release(f"refused-{number}", tag)
            with self.steps.step(f"said in one line: {case}"):
                refuse_steps.check(release, self.kube, case, self.steps)

    def overlays(self):
        if not self.steps.wanted("overlays"):
            return
        folders = overlay_steps.overlays(ROOT)
        with self.step("k8s/ has overlays"):
            if not folders:
                raise AssertionError("no k8s/overlays/*/kustomization.yaml")
        for folder in folders:
            manifest = overlay_steps.rendered(folder)
            if overlay_steps.needs_hardware(manifest):
                with self.step(f"overlay {folder.name}: taken by the API server (it asks for devices)"):
                    overlay_steps.validate(self.kube, manifest)
                continue
            with self.step(f"overlay {folder.name}: applied, answers, deleted"):
                overlay_steps.check(self.kube, folder, (REPOSITORY, TAG), self.model_folder(), self.steps)

    def model_folder(self):
        """The model that ships, under the names that the overlays expect on their claim."""
        folder = self.work / "models"
        if not folder.is_dir():
            for name in ("austen", "model"):
                shutil.copytree(ROOT / "models" / "austen", folder / name)
            self.work.chmod(0o755)  # pods run as a user of their own
        return folder

    def groups(self):
        if not self.steps.wanted("groups"):
            return
        names = [f"workload.kind {kind}: Ready, answers, scaled, gone" for kind in
                 ("LeaderWorkerSet", "DisaggregatedSet")]
        if "lws" not in self.plan["tools"]:
            for name in names:
                self.steps.tally.skip(name, self.plan["missing"]["lws"])
            return
        with groups.controller(self.node, self.plan["tools"]["lws"]):
            for kind, name in zip(("LeaderWorkerSet", "DisaggregatedSet"), names):
                release = self.release(kind.lower())
                with self.step(name, release):
                    self.group(release, kind)

    def group(self, release, kind):
        release.install(releases.values(workload={"kind": kind}))
        release.wait_ready({"router": 1, "prefill": 2, "decode": 2})
        release.wait_serving()
        expected = release.expected(serve_steps.PROMPTS[:2], serve_steps.TOKENS)
        release.upgrade(decode={"replicas": 1})
        release.wait_ready({"router": 1, "prefill": 2, "decode": 1})
        if release.expected(list(expected), serve_steps.TOKENS) != expected:
            raise AssertionError("other answers after scaling")
        release.uninstall()
        release.delete_namespace()


def main():
    work = pathlib.Path(sys.argv[1])
    plan = json.loads((work / "plan.json").read_text(encoding="utf-8"))
    scenario = Scenario(work, plan)
    code = 1
    try:
        code = scenario.run()
    except KeyboardInterrupt:
        scenario.steps.note("interrupted")
        code = 130
    finally:
        tally = scenario.steps.tally
        (work / "tally.json").write_text(json.dumps({"passed": tally.passed, "failed": tally.failed,
                                                     "skipped": tally.skipped, "failures": tally.failures}),
                                         encoding="utf-8")
        scenario.node.shut_down()
    return code


if __name__ == "__main__":
    sys.exit(main())
