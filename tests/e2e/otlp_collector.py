"""An OTLP collector for tests: takes spans over gRPC and gives them back as plain values."""

import concurrent.futures
import dataclasses
import importlib
import shutil
import subprocess
import sys
import tempfile
import threading

import grpc

import cluster as clusters

_directory = tempfile.TemporaryDirectory(prefix="otlp-stubs-")
_protos = sorted(str(p.relative_to(clusters.ROOT)) for p in (clusters.ROOT / "proto/opentelemetry").rglob("*.proto"))
subprocess.run(["protoc", f"-I{clusters.ROOT}", f"--python_out={_directory.name}", f"--grpc_out={_directory.name}",
                f"--plugin=protoc-gen-grpc={shutil.which('grpc_python_plugin')}", *_protos], check=True)
# Baton's own stubs are in a package `proto` of another directory: without __init__.py both are one.
sys.path.insert(0, _directory.name)
importlib.invalidate_caches()
_SERVICE = "proto.opentelemetry.proto.collector.trace.v1.trace_service_pb2"
messages = importlib.import_module(_SERVICE)
services = importlib.import_module(f"{_SERVICE}_grpc")

INTERNAL, SERVER, CLIENT = 1, 2, 3
ERROR = 2


@dataclasses.dataclass
class Span:
    process: str  # service.instance.id
    service: str
    name: str
    kind: int
    trace: str
    id: str
    parent: str
    begin_ns: int
    end_ns: int
    attributes: dict
    events: list
    links: list
    failed: bool
    error: str
    state: str


def _value(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(element) for element in value.array_value.values]
    return getattr(value, kind)


def _attributes(pairs):
    return {pair.key: _value(pair.value) for pair in pairs}


def _spans(request):
    for resource in request.resource_spans:
        process = _attributes(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(process["service.instance.id"], process["service.name"], span.name, span.kind,
                           span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(),
                           span.start_time_unix_nano, span.end_time_unix_nano, _attributes(span.attributes),
                           [(event.name, event.time_unix_nano, _attributes(event.attributes)) for event in span.events],
                           [link.span_id.hex() for link in span.links],
                           span.status.code == ERROR, span.status.message, span.trace_state)


class Collector(services.TraceServiceServicer):
    def __init__(self):
        self.lock = threading.Lock()
        self.taken = []
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        services.add_TraceServiceServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")

    def __enter__(self):
        self.server.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """From here on exporters find nobody; it does not come back."""
        self.server.stop(None)

    def Export(self, request, context):
        with self.lock:
            self.taken.extend(_spans(request))
        return messages.ExportTraceServiceResponse()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def spans(self, trace=None):
        with self.lock:
            return [span for span in self.taken if trace in (None, span.trace)]

    def wait_for(self, names, trace, seconds=30):
        """The spans of a trace once it has at least these, {name: number}."""
        def complete():
            spans = self.spans(trace)
            return all(sum(span.name == name for span in spans) >= count for name, count in names.items())
        try:
            clusters.wait_until(complete, seconds, f"spans of trace {trace}")
        except AssertionError:
            found = sorted(f"{span.process} {span.name}" for span in self.spans(trace))
            raise AssertionError(f"of {names} in trace {trace} there were only {found}") from None
        return self.spans(trace)
