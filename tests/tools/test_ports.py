"""The ports that clusters of tests listen on (tools/cluster/cluster.py)."""

import multiprocessing
import pathlib
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "cluster"))

import cluster as clusters  # noqa: E402

NEVER_DRAWN = 65_000  # Above all ports that free_ports draws by itself.


def _claim(port, connection):
    connection.send(clusters.PortClaims().claim(port))
    connection.recv()  # The claim ends with this process.


def draw(monkeypatch, *ports):
    drawn = iter(ports)
    monkeypatch.setattr(clusters.random, "randrange", lambda *_: next(drawn))


def test_a_port_that_another_process_has_claimed_is_not_even_tried(monkeypatch):
    ours, theirs = multiprocessing.Pipe()
    stranger = multiprocessing.get_context("spawn").Process(target=_claim, args=(NEVER_DRAWN, theirs), daemon=True)
    stranger.start()
    assert ours.recv()
    tried = []
    monkeypatch.setattr(clusters, "can_bind", lambda port: tried.append(port) or True)
    draw(monkeypatch, NEVER_DRAWN, NEVER_DRAWN + 1)
    assert clusters.free_ports(1) == tried == [NEVER_DRAWN + 1]
    ours.send("done")
    stranger.join()


def test_a_port_that_somebody_listens_on_is_left(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        draw(monkeypatch, taken.getsockname()[1], NEVER_DRAWN + 2)
        assert clusters.free_ports(1) == [NEVER_DRAWN + 2]
