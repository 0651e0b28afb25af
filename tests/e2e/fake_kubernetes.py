"""The part of the Kubernetes API that discovery speaks to, over TLS: lists of pods in pages, watches with
bookmarks and 410, tokens that expire, and every way in which a real one fails."""

import http.server
import json
import ssl
import subprocess
import threading
import urllib.parse

SELECTOR = "app=baton"
NAMESPACE = "serving"
PAGE = 2  # Pods in one page of a list, however many are asked for.


def make_account(directory):
    """A service account's directory, with a certificate for 127.0.0.1 that is its own CA."""
    directory.mkdir()
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-keyout", directory / "key.pem", "-out", directory / "ca.crt", "-days", "2", "-subj", "/CN=api",
                    "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    (directory / "namespace").write_text(NAMESPACE)
    (directory / "token").write_text("first\n")
    return directory


class Api:
    """Thread-safe; one condition guards everything and tells watchers of news."""

    def __init__(self, account):
        self.news = threading.Condition()
        self.token = "first"
        self.version = 100
        self.oldest = 0  # Versions below are gone.
        self.pods, self.events = {}, []
        self.counts = {"list": 0, "watch": 0, "refused": 0, "gone": 0}
        self.broken = 0  # Watches that began before this number of breaks end.
        self.raw = []  # What is sent to watches as it is, beside the events.
        self.failures = []  # HTTP statuses of the next requests.
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                api.answer(self)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):  # Peers that leave are no news.
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(account / "ca.crt", account / "key.pem")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.break_watches()
        self.server.shutdown()

    @property
    def environment(self):
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port)}

    # ---- What the cluster does ----

    def put(self, name, port, restarts=0, leaving=False):
        with self.news:
            self.version += 1
            metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(self.version)}
            if leaving:
                metadata["deletionTimestamp"] = "2026-11-22T00:00:00Z"
            pod = {"kind": "Pod", "metadata": metadata,
                   "spec": {"containers": [{"ports": [{"name": "grpc", "containerPort": port}]}]},
                   "status": {"phase": "Running", "podIP": "127.0.0.1",
                              "containerStatuses": [{"restartCount": restarts}]}}
            kind = "MODIFIED" if name in self.pods else "ADDED"
            self.pods[name] = pod
            self._tell(kind, pod)

    def remove(self, name):
        with self.news:
            self.version += 1
            pod = self.pods.pop(name)
            pod["metadata"]["resourceVersion"] = str(self.version)
            self._tell("DELETED", pod)

    def bookmark(self):
        with self.news:
            self.version += 7
            self._tell("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(self.version)}})

    def forget_history(self):
        """Every version that anybody holds is gone: watches of one are answered with 410."""
        with self.news:
            self.version += 1
            self.oldest = self.version
            self.events.clear()

    def break_watches(self):
        with self.news:
            self.broken += 1
            self.news.notify_all()

    def say(self, raw):
        with self.news:
            self.raw.append(raw)
            self.news.notify_all()

    def fail_next(self, *statuses):
        with self.news:
            self.failures.extend(statuses)

    def wait_for(self, what, count, seconds=30):
        with self.news:
            assert self.news.wait_for(lambda: self.counts[what] >= count, seconds), f"{what}: {self.counts}"

    def _tell(self, kind, thing):
        self.events.append((self.version, json.dumps({"type": kind, "object": thing})))
        self.news.notify_all()

    # ---- What it answers ----

    def answer(self, request):
        url = urllib.parse.urlsplit(request.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        with self.news:
            self.news.notify_all()
            if request.headers["Authorization"] != f"Bearer {self.token}":
                self.counts["refused"] += 1
                return self.error(request, 401, "Unauthorized")
            if url.path != f"/api/v1/namespaces/{NAMESPACE}/pods" or query.get("labelSelector") != SELECTOR:
                return self.error(request, 403, f"forbidden: {request.path}")
            if self.failures:
                return self.error(request, self.failures.pop(0), "on purpose")
            if "watch" not in query:
                self.counts["list"] += 1
                return self.list(request, int(query.get("continue", "0")))
        return self.watch(request, int(query["resourceVersion"]))

    def error(self, request, code, message):
        self.send(request, code, {"kind": "Status", "code": code, "message": message})

    def list(self, request, start):
        names = sorted(self.pods)
        metadata = {"resourceVersion": str(self.version)}
        if start + PAGE < len(names):
            metadata["continue"] = str(start + PAGE)
        items = [self.pods[name] for name in names[start:start + PAGE]]
        self.send(request, 200, {"kind": "PodList", "metadata": metadata, "items": items})

    @staticmethod
    def send(request, code, body):
        data = json.dumps(body).encode()
        request.send_response(code)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def watch(self, request, version):
        request.close_connection = True
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()

        def chunk(text):
            data = text.encode()
            request.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            request.wfile.flush()

        with self.news:
            self.counts["watch"] += 1
            began, raw_seen, gone = self.broken, len(self.raw), version < self.oldest
            self.counts["gone"] += gone
            self.news.notify_all()
        if gone:
            status = {"kind": "Status", "code": 410, "message": "too old resource version"}
            chunk(json.dumps({"type": "ERROR", "object": status}) + "\n")
            return

        def news():
            return self.broken != began or len(self.raw) > raw_seen or any(at > version for at, _ in self.events[-1:])

        cut = False
        while not cut:  # The end comes without the last chunk: a connection that breaks.
            with self.news:
                self.news.wait_for(news)
                cut = self.broken != began
                fresh = [(at, line) for at, line in self.events if at > version]
                raw, raw_seen = self.raw[raw_seen:], len(self.raw)
            for text in raw:
                chunk(text)
            for at, line in fresh:
                version = at
                half = len(line) // 2  # An event may come in pieces.
                chunk(line[:half])
                chunk(line[half:] + "\n")
