"""Writes deploy/grafana/dashboards/*.json, Grafana's dashboards of a Baton cluster.

A panel is a line here: title, unit, expressions. What all panels share (variables, data source,
legend, layout) is written once, and every metric's name is checked against docs/metrics.md, which is
made of the metrics table: a rename breaks this script, and tests/e2e/test_observe.py compares its output with
the committed files. `python3 deploy/grafana/generate.py` rewrites them.
"""

import json
import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
METRICS_PAGE = HERE.parents[1] / "docs" / "metrics.md"
RULES = HERE.parent / "prometheus" / "rules" / "baton.recording.yaml"
SELECT = 'namespace=~"$namespace",model_name=~"$model"'
PANEL_HEIGHT, GRID = 8, 24


def known_metrics():
    """Names that a process exports: the table's, and the series of its histograms."""
    names = set()
    for name, kind in re.findall(r"^- `(baton_\w+)` \((\w+)[,;]", METRICS_PAGE.read_text(), re.M):
        names.add(name)
        if kind == "histogram":
            names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return names


def known_records():
    return set(re.findall(r"record: (\S+)", RULES.read_text()))


def names_of(expression):
    return set(re.findall(r"\bbaton[_:][\w:]+", expression))


def select(expression):
    """`baton_x{a="b"}` and `baton_x` with the dashboard's variables added."""
    def add(match):
        name, labels = match.group(1), match.group(2)
        return f"{name}{{{SELECT}{',' + labels[1:-1] if labels else ''}}}"
    return re.sub(r"\b(baton[_:][\w:]+)(\{[^}]*\})?", add, expression)


def quantiles(metric, by="", levels=(0.5, 0.95, 0.99), labels="", legend=None):
    group = f"{by}, le" if by else "le"
    return [(f"p{round(level * 100)}" + (f" {legend or f'{{{{{by}}}}}'}" if by else ""),
             f"histogram_quantile({level}, sum by ({group}) (rate({metric}_bucket{labels}[$__rate_interval])))")
            for level in levels]


def rate(metric, by, legend=None):
    return [(legend or f"{{{{{by.split(', ')[-1]}}}}}", f"sum by ({by}) (rate({metric}[$__rate_interval]))")]


def row(title):
    return {"row": title}


def within(metric, by, legend=None, labels=""):
    """Counts of what is rare, where a rate a second says nothing."""
    return [(legend or f"{{{{{by}}}}}", f"sum by ({by}) (increase({metric}{labels}[5m]))")]


def panel(title, unit, series, kind="timeseries", stack=False, maximum=None, help_text="", colors=None):
    return {"title": title, "unit": unit, "series": series, "kind": kind, "stack": stack, "max": maximum,
            "help": help_text, "colors": colors or {}}


def states(title, metric, zero, one, colors=("red", "green"), help_text=""):
    """A bar for each process over time, with words and colors for a `metric` that is 0 or 1."""
    made = panel(title, "short", [("{{instance_id}}", f"min by (instance_id) ({metric})")], kind="state-timeline",
                 help_text=help_text)
    return {**made, "words": {"0": (zero, colors[0]), "1": (one, colors[1])}}


def heatmap(title, metric):
    return panel(title, "s", [("{{le}}", f"sum by (le) (increase({metric}_bucket[$__rate_interval]))")], kind="heatmap")


IDLE = 'baton_stage_idle_seconds_total{reason!="no_request"}'
ISSUED = "baton_plans_issued_total"
BATCH = "baton_decode_batch_size"
SLOTS = "baton_plan_slot_occupancy_ratio"
BUSY = "baton_stage_busy_seconds_total"
MEDIAN_AND_TAIL = (0.5, 0.99)
OUTCOME_COLORS = {"ok": "green", "invalid": "blue", "cancelled": "purple", "overloaded": "yellow",
                  "deadline_exceeded": "orange", "unavailable": "red", "internal": "dark-red"}
FINISH_COLORS = {"stop": "green", "length": "blue", "abort": "purple", "error": "red"}


def mean(metric, labels=""):
    return (f"sum(rate({metric}_sum{labels}[$__rate_interval]))"
            f" / (sum(rate({metric}_count{labels}[$__rate_interval])) > 0)")


TTFT_MEAN = mean("baton_time_to_first_token_seconds")
ROUTER_WAIT_MEAN = mean("baton_request_queue_seconds", '{role="router"}')
PREFILL_MEAN = mean("baton_prefill_seconds")

DASHBOARDS = {
    "baton-overview": ("Baton / Overview", [
        row("Now"),
        panel("Ready pairs", "short", [("pairs", "max(baton_ready_pairs)")], kind="stat",
              help_text="Pairs of a prefill chain and a decode service that can serve, and colocated chains. 0: "
                        "nothing is served."),
        panel("Workers", "short", [("{{worker_role}} {{state}}",
                                    "max by (worker_role, state) (baton_workers) > 0")], kind="stat"),
        panel("Requests in the cluster", "short", [("running", 'sum(baton_requests_running{role="router"})'),
                                                   ("waiting", 'sum(baton_requests_waiting{role="router"})')],
              kind="stat"),
        row("Requests"),
        panel("Requests by outcome", "reqps", rate("baton_requests_total", "outcome"), stack=True,
              colors=OUTCOME_COLORS),
        panel("Failed share", "percentunit", [("failed", "baton:error_ratio:rate5m"),
                                              ("refused: overloaded", "baton:overloaded_ratio:rate5m"),
                                              ("started again", "baton:retry_ratio:rate5m")], maximum=1),
        panel("Ends by reason", "reqps", rate("baton_requests_finished_total", "finish_reason"), stack=True,
              colors=FINISH_COLORS),
        row("Latency, as clients see it"),
        panel("Time to first token", "s", quantiles("baton_time_to_first_token_seconds")),
        panel("Time per output token", "s", quantiles("baton_time_per_output_token_seconds")),
        panel("Request duration", "s", quantiles("baton_request_duration_seconds")),
        heatmap("Time to first token, distribution", "baton_time_to_first_token_seconds"),
        heatmap("Time per output token, distribution", "baton_time_per_output_token_seconds"),
        panel("Wait for admission, by role", "s", quantiles("baton_request_queue_seconds", "role", MEDIAN_AND_TAIL)),
        row("Throughput and memory"),
        panel("Tokens per second", "short",
              [("prompt", "sum(rate(baton_prompt_tokens_total[$__rate_interval]))"),
               ("generated", 'sum(rate(baton_generation_tokens_total{role="router"}[$__rate_interval]))')]),
        panel("KV cache in use", "percentunit",
              [("{{instance_id}}", "max by (instance_id) (baton_kv_used_ratio)")],
              maximum=1),
        panel("Running and waiting by role", "short",
              [("{{role}} running", "sum by (role) (baton_requests_running)"),
               ("{{role}} waiting", "sum by (role) (baton_requests_waiting)")]),
    ]),
    "baton-prefill-decode": ("Baton / Prefill and decode", [
        row("Where the time to first token goes"),
        panel("Mean, by part", "s",
              [("wait at the router", ROUTER_WAIT_MEAN), ("prefill in the chain", PREFILL_MEAN),
               ("the rest", f"clamp_min({TTFT_MEAN} - {ROUTER_WAIT_MEAN} - {PREFILL_MEAN}, 0)")], stack=True,
              help_text="The rest: reservation at decode, the hand-off's end after the last chunk, the wire."),
        panel("Wait at the router", "s",
              quantiles("baton_request_queue_seconds", "", MEDIAN_AND_TAIL, '{role="router"}')),
        panel("Prefill in the chain", "s", quantiles("baton_prefill_seconds", "", MEDIAN_AND_TAIL)),
        panel("KV hand-off, first byte to commit", "s",
              quantiles("baton_kv_transfer_seconds", "", MEDIAN_AND_TAIL, '{role="decode"}')),
        row("Prefill"),
        panel("Prompt tokens computed per second", "short",
              rate("baton_prefill_tokens_total", "instance_id")),
        panel("Prompts waiting", "short",
              [("{{instance_id}}", 'sum by (instance_id) (baton_requests_waiting{role="prefill"})')]),
        panel("Prompts running", "short",
              [("{{instance_id}}", 'sum by (instance_id) (baton_requests_running{role="prefill"})')]),
        row("Decode"),
        panel("Steps per second", "short", rate("baton_decode_steps_total", "instance_id")),
        panel("Step time", "s", quantiles("baton_decode_step_seconds", "", MEDIAN_AND_TAIL)),
        panel("Mean batch", "short",
              [("{{instance_id}}",
                "sum by (instance_id) (rate(baton_decode_batch_size_sum[$__rate_interval]))"
                " / sum by (instance_id) (rate(baton_decode_batch_size_count[$__rate_interval]))")]),
        panel("Tokens sampled per second", "short", [("{{instance_id}}",
              'sum by (instance_id) (rate(baton_generation_tokens_total{role="decode"}[$__rate_interval]))')]),
        panel("Requests running", "short",
              [("{{instance_id}}", 'sum by (instance_id) (baton_requests_running{role="decode"})')]),
        panel("Requests waiting for pages", "short",
              [("{{instance_id}}", 'sum by (instance_id) (baton_requests_waiting{role="decode"})')]),
    ]),
    "baton-pipeline": ("Baton / Pipeline", [
        row("Stages"),
        panel("Busy share of working time", "percentunit",
              [("stage {{stage}} {{instance_id}}", "baton:stage_busy_ratio:rate5m")],
              maximum=1, help_text="Time without any request in the chain is left out."),
        panel("Bubble share of working time", "percentunit",
              [("stage {{stage}} {{instance_id}}", "baton:stage_bubble_ratio:rate5m")], maximum=1),
        panel("Idle by cause", "percentunit",
              [("{{reason}}", f"sum by (reason) (rate({IDLE}[$__rate_interval])) / scalar(count({BUSY}))")], stack=True,
              help_text="Seconds a second and stage: bubble, activations on the way, or no buffer at the next stage."),
        row("Chunks"),
        panel("Chunks a request", "short", quantiles("baton_request_chunks", "", MEDIAN_AND_TAIL)),
        panel("Chunk size in tokens", "short", quantiles("baton_chunk_tokens", "", MEDIAN_AND_TAIL)),
        panel("Chunk compute time", "s",
              quantiles("baton_chunk_compute_seconds", "stage", MEDIAN_AND_TAIL, legend="stage {{stage}}")),
        panel("Predictions of compute times are off by", "percentunit",
              [("{{instance_id}}", 'baton_plan_cost_error_ratio{stage="0"}')],
              help_text="Of the stage that is predicted worst, as stage 0 sees it. "
                        "Above 30 % chunks are cut without asking what they cost."),
        panel("Plans applied per second", "short", rate("baton_plans_total", "stage", "stage {{stage}}")),
        row("Between stages"),
        panel("Activations sent", "Bps", rate("baton_activation_bytes_total", "stage", "stage {{stage}}")),
        panel("Busy share of all time", "percentunit",
              [("stage {{stage}} {{instance_id}}", f"rate({BUSY}[$__rate_interval])")], maximum=1),
        panel("Tokens computed per second", "short", rate("baton_prefill_tokens_total", "stage", "stage {{stage}}")),
    ]),
    "baton-colocated": ("Baton / Colocated chains and prefix caches", [
        row("Prompts beside decode steps"),
        panel("Time between tokens", "s", quantiles("baton_inter_token_latency_seconds"),
              help_text="As the router sees it, for pairs and colocated chains alike."),
        panel("A token's wait for its next plan", "s", quantiles("baton_decode_wait_seconds"),
              help_text="Long waits come of long plans: --decode-max-wait-ms and --target-itl-ms bound them."),
        panel("Plans issued by kind", "short", rate("baton_plans_issued_total", "kind"), stack=True),
        panel("Mixed share of plans that decode", "percentunit",
              [("mixed", f'sum(rate({ISSUED}{{kind="mixed"}}[$__rate_interval]))'
                         f' / (sum(rate({ISSUED}{{kind!="prefill"}}[$__rate_interval])) > 0)')], maximum=1),
        panel("Requests in a decode step", "short",
              [("{{instance_id}}",
                f'sum by (instance_id) (rate({BATCH}_sum{{role="prefill"}}[$__rate_interval]))'
                f' / (sum by (instance_id) (rate({BATCH}_count{{role="prefill"}}[$__rate_interval])) > 0)')]),
        panel("Requests in a plan over the most that it may have", "percentunit",
              [("{{instance_id}}",
                f'sum by (instance_id) (rate({SLOTS}_sum{{role="prefill"}}[$__rate_interval]))'
                f' / (sum by (instance_id) (rate({SLOTS}_count{{role="prefill"}}[$__rate_interval])) > 0)')],
              maximum=1, help_text="At 1 all slots are full: --pp-max-micro-batch-size, --max-running-requests."),
        panel("Prompts computed in part", "short",
              [("{{instance_id}}", "max by (instance_id) (baton_prompts_chunked)")]),
        row("Memory"),
        panel("Retractions within 5 minutes", "short", within("baton_retractions_total", "instance_id"),
              help_text="Requests that gave their pages to older ones and were computed again."),
        panel("Pages in prefix caches", "short",
              [("{{instance_id}}", "max by (instance_id) (baton_prefix_cache_pages)")]),
        panel("Cached pages given up within 5 minutes", "short",
              within("baton_prefix_cache_evicted_pages_total", "instance_id")),
        panel("Cached share of prompts", "percentunit",
              [("cached", "sum(rate(baton_cached_prompt_tokens_total[$__rate_interval]))"
                          " / (sum(rate(baton_prompt_tokens_total[$__rate_interval])) > 0)")], maximum=1),
        panel("Prompt pages that decode held per second", "short", rate("baton_kv_reused_pages_total", "instance_id")),
    ]),
    "baton-kv-handoff": ("Baton / KV hand-off", [
        row("Transfers"),
        panel("Bytes handed over", "Bps", rate("baton_kv_transfer_bytes_total", "role")),
        panel("Transfer time", "s", quantiles("baton_kv_transfer_seconds", "role", MEDIAN_AND_TAIL)),
        panel("Failures within 5 minutes", "short",
              within("baton_kv_transfer_failures_total", "role, reason", "{{role}} {{reason}}")),
        row("Safety"),
        panel("Messages refused within 5 minutes", "short", within("baton_kv_messages_refused_total", "reason"),
              help_text="What names a stale generation is refused; a few come with every abort."),
        panel("Grants active", "short", [("{{instance_id}}", "sum by (instance_id) (baton_kv_grants_active)")]),
        panel("Leases expired within 5 minutes", "short",
              within("baton_kv_leases_expired_total", "role", "{{role}}")),
        row("Pages"),
        panel("Pages used", "short", [("{{instance_id}} used", "sum by (instance_id) (baton_kv_pages_used)"),
                                      ("{{instance_id}} capacity", "sum by (instance_id) (baton_kv_pages_capacity)")]),
        panel("Pages in quarantine", "short",
              [("{{instance_id}}", "sum by (instance_id) (baton_kv_pages_quarantined)")]),
        panel("KV cache in use", "percentunit",
              [("{{instance_id}}", "max by (instance_id) (baton_kv_used_ratio)")], maximum=1),
    ]),
    "baton-gpu": ("Baton / GPUs", [
        row("GPUs that workers compute on, as their drivers say"),
        panel("Memory in use", "percentunit",
              [("{{instance_id}} {{device}}",
                "max by (instance_id, device) (baton_device_memory_used_bytes)"
                " / max by (instance_id, device) (baton_device_memory_total_bytes)")], maximum=1,
              help_text="By all processes of the GPU. Nothing without GPUs, and where a driver does not answer."),
        panel("Memory in use, bytes", "bytes",
              [("{{instance_id}} {{device}}", "max by (instance_id, device) (baton_device_memory_used_bytes)")]),
        panel("Busy", "percentunit",
              [("{{instance_id}} {{device}}", "max by (instance_id, device) (baton_device_utilization_ratio)")],
              maximum=1, help_text="Share of time in which anything ran there, however little of the GPU it took."),
    ]),
    "baton-process": ("Baton / Process", [
        row("Processes"),
        states("Makes progress", "baton_up", "stuck", "yes"),
        states("Takes requests", "baton_ready", "no", "yes",
               help_text="Loading, draining, or nobody to serve with: a router's /readiness and a worker's log say."),
        panel("Weights loaded", "percentunit",
              [("{{instance_id}}", "min by (instance_id) (baton_weight_load_progress_ratio)")], maximum=1),
        row("Membership"),
        panel("Uptime", "s",
              [("{{instance_id}}", "max by (instance_id) (baton_process_uptime_seconds)")]),
        panel("Workers by state", "short",
              [("{{worker_role}} {{state}}", "max by (worker_role, state) (baton_workers)")]),
        panel("Workers lost within 5 minutes", "short",
              within("baton_membership_leases_expired_total", "instance_id")),
        row("Versions and starts"),
        panel("Processes by version", "short", [("{{version}}", "count by (version) (baton_build_info)")]),
        panel("Starts within the hour", "short",
              [("{{instance_id}}", "changes(baton_process_start_time_seconds[1h])")]),
        panel("Requests started again within 5 minutes", "short", within("baton_request_retries_total", "leg"),
              help_text="By the leg that failed, before the first token or after it; clients saw time, not errors."),
        panel("Texts that were to go on elsewhere within 5 minutes", "short",
              within("baton_request_resumes_total", "outcome"),
              help_text="continued: clients saw a pause. diverged: other workers drew another token, and clients saw "
                        "DATA_LOSS."),
        panel("Requests beyond a tenant's limit within 5 minutes", "short",
              within("baton_rate_limited_total", "limit"), help_text="Clients saw 429 with Retry-After."),
        panel("Requests that the router's queue refused within 5 minutes", "short",
              within("baton_queue_refusals_total", "reason"),
              help_text="full: --max-queued-requests. predicted, waited: --max-queue-ms. gave_way: another tenant had "
                        "fewer in a full queue."),
        row("Drain"),
        states("Draining", "baton_draining", "no", "draining", colors=("green", "yellow"),
               help_text="Finishes what it has begun and takes nothing new."),
        panel("Requests that drains ended within 5 minutes", "short",
              within("baton_drain_ended_requests_total", "role, cause", "{{role}} {{cause}}"),
              help_text="Clients saw time_over and worker; what was refused or handed back is served elsewhere."),
        row("HTTP servers: clients at the router, probes at the workers"),
        panel("Connections open", "short", [("{{instance_id}}", "sum by (instance_id) (baton_http_connections_open)")]),
        panel("Connections accepted per second", "short", rate("baton_http_connections_accepted_total", "instance_id")),
        panel("Turned away within 5 minutes", "short",
              [*within("baton_http_refused_total", "role, reason", "{{role}} {{reason}}"),
               *within("baton_http_connections_evicted_total", "role", "{{role}} idle, closed for others")],
              help_text="Limits of the HTTP server: of connections, of bodies held at once. Idle connections give "
                        "way to new ones first."),
        row("Traces"),
        panel("Spans exported per second", "short",
              [("{{role}}", 'sum by (role) (rate(baton_trace_spans_total{fate="exported"}[$__rate_interval]))')],
              help_text="Zero without --otlp-traces-endpoint."),
        panel("Spans lost within 5 minutes", "short",
              within("baton_trace_spans_total", "role, fate", "{{role}} {{fate}}", '{fate!="exported"}'),
              help_text="failed: the collector is away or refuses them. queue_full: it is too slow. Requests go on "
                        "either way."),
        row("Output"),
        panel("Lines lost within 5 minutes", "short",
              within("baton_log_lines_dropped_total", "instance_id", "{{instance_id}}"),
              help_text="What reads the log stands still or has gone, or the disk is full. Requests go on."),
    ]),
}


def variable(name, query, label, kind="query"):
    if kind == "datasource":
        return {"name": name, "label": label, "type": "datasource", "query": query, "current": {}, "hide": 0}
    return {"name": name, "label": label, "type": "query",
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": {"query": query, "refId": name}, "definition": query, "refresh": 2, "includeAll": True,
            "allValue": ".*", "multi": True, "sort": 1,
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]}}


def overrides(spec):
    """Colors that mean something; what is zero all the time keeps its line and leaves the legend."""
    rules = [{"matcher": {"id": "byName", "options": name},
              "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}]}
             for name, color in spec["colors"].items()]
    if spec["kind"] == "timeseries" and any("{{" in legend for legend, _ in spec["series"]):
        rules.append({"matcher": {"id": "byValue", "options": {"reducer": "allIsZero", "op": "gte", "value": 0}},
                      "properties": [{"id": "custom.hideFrom",
                                      "value": {"legend": True, "tooltip": True, "viz": False}}]})
    return rules


OPTIONS = {
    "timeseries": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                   "tooltip": {"mode": "multi", "sort": "desc"}},
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none",
             "textMode": "value_and_name"},
    "state-timeline": {"mergeValues": True, "showValue": "auto", "rowHeight": 0.8,
                       "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False}},
}


def render_target(spec, number, legend, expression):
    # A stat asks for now alone: over a range it would show what is long gone by its last value.
    now = spec["kind"] == "stat"
    return {"refId": chr(ord("A") + number), "expr": select(expression), "legendFormat": legend,
            "format": "heatmap" if spec["kind"] == "heatmap" else "time_series", "instant": now, "range": not now,
            "datasource": {"type": "prometheus", "uid": "${datasource}"}}


def render_panel(spec, identity, x, y, width):
    custom = {"lineWidth": 1, "fillOpacity": 30 if spec["stack"] else 5, "showPoints": "never",
              "stacking": {"mode": "normal" if spec["stack"] else "none", "group": "A"}}
    defaults = {"unit": spec["unit"], "min": 0, "custom": custom if spec["kind"] == "timeseries" else {}}
    if spec["max"] is not None:
        defaults["max"] = spec["max"]
    if "words" in spec:
        defaults["mappings"] = [{"type": "value", "options": {
            value: {"text": text, "color": color, "index": i}
            for i, (value, (text, color)) in enumerate(spec["words"].items())}}]
    heat = {"calculate": False, "yAxis": {"unit": spec["unit"]}, "color": {"scheme": "Blues"}}
    return {
        "id": identity, "title": spec["title"], "type": spec["kind"], "description": spec["help"],
        "gridPos": {"x": x, "y": y, "w": width, "h": PANEL_HEIGHT if spec["kind"] != "stat" else PANEL_HEIGHT // 2},
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": defaults, "overrides": overrides(spec)},
        "targets": [render_target(spec, i, *series) for i, series in enumerate(spec["series"])],
        "options": OPTIONS.get(spec["kind"], heat),
    }


def widths(specs):
    """Three panels stand beside one another, four if a row has just four; by the panel's number."""
    found, last = {}, 0
    for number, spec in enumerate([*specs, row("")]):
        if "row" in spec:
            count = number - last
            found.update(dict.fromkeys(range(last, number), GRID // 4 if count == 4 else GRID // 3))
            last = number + 1
    return found


def render(identity, title, specs):
    panels, x, y, height = [], 0, 0, 0
    width_of = widths(specs)
    for number, spec in enumerate(specs):
        if "row" in spec:
            y, x = y + height, 0
            panels.append({"id": number + 1, "type": "row", "title": spec["row"], "collapsed": False, "panels": [],
                           "gridPos": {"x": 0, "y": y, "w": GRID, "h": 1}})
            y, height = y + 1, 0
            continue
        width = width_of[number]
        if x + width > GRID:
            x, y, height = 0, y + height, 0
        rendered = render_panel(spec, number + 1, x, y, width)
        panels.append(rendered)
        x, height = x + width, max(height, rendered["gridPos"]["h"])
    return {
        "uid": identity, "title": title, "tags": ["baton"], "schemaVersion": 39, "version": 1, "editable": True,
        "timezone": "browser", "refresh": "10s", "time": {"from": "now-30m", "to": "now"}, "graphTooltip": 1,
        "templating": {"list": [variable("datasource", "prometheus", "Data source", "datasource"),
                                variable("namespace", "label_values(baton_build_info, namespace)", "Namespace"),
                                variable("model", "label_values(baton_build_info, model_name)", "Model")]},
        "links": [{"title": "Baton", "type": "dashboards", "tags": ["baton"], "asDropdown": True, "includeVars": True,
                   "keepTime": True}],
        "annotations": {"list": []}, "panels": panels,
    }


def check_names():
    known = known_metrics() | known_records()
    for identity, (_, specs) in DASHBOARDS.items():
        for spec in specs:
            for _, expression in spec.get("series", []):
                unknown = names_of(expression) - known
                if unknown:
                    raise SystemExit(f"{identity}: \"{spec['title']}\" names {', '.join(sorted(unknown))}, "
                                     f"which docs/metrics.md and {RULES.name} do not have")


def dashboards():
    """{file name: text} of every dashboard."""
    check_names()
    return {f"{identity}.json": json.dumps(render(identity, title, specs), indent=1) + "\n"
            for identity, (title, specs) in DASHBOARDS.items()}


def main():
    for name, text in dashboards().items():
        (HERE / "dashboards" / name).write_text(text)


if __name__ == "__main__":
    main()
