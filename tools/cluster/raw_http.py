"""HTTP by the byte, for what http.client hides: half-closed connections, ends without a word, leaving early."""

import contextlib
import json
import socket

import cluster as clusters


def connect(cluster):
    """A TCP connection to the router's HTTP port, which waits no longer than a minute for anything."""
    return socket.create_connection(("127.0.0.1", cluster.http_port), timeout=60 * clusters.PATIENCE)


def post_bytes(body, path="/v1/completions", headers=""):
    """A POST as it goes over the wire; each of `headers` ends with CRLF."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(data)}\r\n\r\n".encode() + data


def read_all(connection):
    """What comes until the server closes; a reset is an end too, a missing close_notify of TLS is an error."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)
