"""Who may speak to a cluster's processes: certificates, tokens, keys, and how they change under load.

`./dev check security` runs this with SECURITY_ROUNDS changes instead of one.
"""

import contextlib
import os
import pathlib
import ssl
import subprocess
import threading

import grpc
import pytest

import cluster as clusters
import stubs
from certificates import Authority, replace
from client import Client
from load import Load
from test_up import Up

HOST = "baton.test"  # Python's gRPC wants a name in certificates; Baton's does not look.
ROUNDS = int(os.environ.get("SECURITY_ROUNDS", "1"))
PROMPTS = [(list(range(20 + i)), 12, None) for i in range(4)]
SMALL = ["--page-size", 16]
REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
OUTSIDE = (grpc.StatusCode.UNAVAILABLE,)  # Not even a connection.


@contextlib.contextmanager
def caller(target, authority=None, pair=None, token=None):
    """A channel of somebody with this certificate and token; each may be None."""
    if authority is None:
        channel = grpc.insecure_channel(target)
    else:
        certificate, key = (pathlib.Path(path).read_bytes() for path in pair) if pair else (None, None)
        credentials = grpc.ssl_channel_credentials(pathlib.Path(authority).read_bytes(), key, certificate)
        channel = grpc.secure_channel(target, credentials, [("grpc.ssl_target_name_override", HOST)])
    with channel:
        yield channel, [("baton-cluster-token", token)] if token else None


def outcome(target, method, request=b"", **who):
    """The status of a unary call of bytes."""
    with caller(target, **who) as (channel, metadata):
        try:
            channel.unary_unary(method)(request, metadata=metadata, timeout=10 * clusters.PATIENCE)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def listed(target, **who):
    with caller(target, **who) as (channel, metadata):
        return stubs.cluster_grpc.ClusterStub(channel).List(stubs.cluster.ListRequest(), metadata=metadata,
                                                            timeout=10 * clusters.PATIENCE).workers


def drain(cluster, instance, *flags):
    return subprocess.run([str(clusters.BATON), "drain", "--router-address", cluster.cluster_target, "--instance-id",
                           instance, *map(str, flags)], capture_output=True, text=True, check=False,
                          timeout=60 * clusters.PATIENCE)


def serves(cluster):
    with Client(cluster.target) as client:
        return client.greedy(list(range(40)), 5).error is None


def posed_as(worker, role, instance):
    """The registration of somebody who says that it is this."""
    info = stubs.cluster.WorkerInfo()
    info.CopyFrom(worker)
    info.instance.instance_id, info.instance.incarnation = instance, 77
    info.role, info.data_address = role, b"nowhere"
    registration = stubs.cluster.RegisterRequest(worker=info)
    return stubs.cluster.LeaseRequest(registration=registration).SerializeToString()


# ---- Mutual TLS ----


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def secured(tiny_model, ours, tmp_path_factory):
    with clusters.Cluster(tiny_model, tmp_path_factory.mktemp("logs"), stages=2, decodes=2,
                          flags=SMALL, router_flags=ours.flags("router", host=HOST),
                          prefill_flags=ours.flags("prefill", host=HOST),
                          decode_flags=ours.flags("decode", host=HOST)) as cluster:
        yield cluster


def test_a_cluster_with_certificates_serves(secured):
    assert serves(secured)
    assert all(secured.metric(name, "baton_data_plane_unproven_messages_total") == 0 for name in secured.metrics_ports)


def test_who_shows_no_good_certificate_gets_nowhere(secured, ours, tmp_path):
    theirs = Authority(tmp_path / "theirs", "theirs")
    operator = ["baton://operator"]
    cases = {"no TLS": {}, "no certificate": {"authority": ours.certificate},
             "another authority": {"authority": ours.certificate, "pair": theirs.issue("operator", *operator)},
             "expired": {"authority": ours.certificate, "pair": ours.issue("old", *operator, expired=True)}}
    targets = [secured.cluster_target, *(w.worker.grpc_address for w in listed(
        secured.cluster_target, authority=ours.certificate, pair=ours.issue("operator", *operator)))]
    for what, who in cases.items():
        for target in targets:
            # Not even whether it is healthy.
            for method in ("/baton.v1.Cluster/Drain", "/baton.v1.Prefill/Start", "/grpc.health.v1.Health/Check"):
                assert outcome(target, method, **who) in OUTSIDE, (what, target, method)
    assert serves(secured)


def test_a_role_may_do_what_is_its_and_no_more(secured, ours):
    def who(role, instance=""):
        uri = f"baton://{role}" + (f"/{instance}" if instance else "")
        return {"authority": ours.certificate, "pair": ours.issue(f"{role}-{instance}", uri)}
    workers = {w.worker.instance.instance_id: w.worker
               for w in listed(secured.cluster_target, **who("operator"))}
    assert not any(worker.data_address for worker in workers.values()), "addresses with their secrets are for workers"
    stage, decode = workers["prefill-0-0"], workers["decode-0"]
    router, nobody = secured.cluster_target, {"authority": ours.certificate, "pair": ours.issue("nobody")}
    lease, start = "/baton.v1.Cluster/Lease", "/baton.v1.Prefill/Start"
    cases = [
        (router, "/baton.v1.Cluster/Drain", b"", nobody), (router, "/baton.v1.Cluster/Drain", b"", who("prefill")),
        (router, "/baton.v1.Cluster/List", b"", who("decode")), (router, lease, b"", who("operator")),
        (router, lease, posed_as(decode, stubs.cluster.ROLE_DECODE, "x"), who("prefill")),
        (router, lease, posed_as(stage, stubs.cluster.ROLE_PREFILL, "x"), who("decode")),
        (router, lease, posed_as(decode, stubs.cluster.ROLE_DECODE, "x"), who("decode", "y")),
        (stage.grpc_address, start, b"", who("decode")), (stage.grpc_address, start, b"", who("operator")),
        (stage.grpc_address, "/baton.v1.Worker/Announce", b"", who("prefill")),
        (decode.grpc_address, "/baton.v1.Decode/Reserve", b"", who("prefill")),
        (decode.grpc_address, "/baton.v1.Decode/Abort", b"", who("decode")),
    ]
    for target, method, request, caller_of in cases:
        code = outcome(target, method, request, **caller_of)
        assert code == grpc.StatusCode.PERMISSION_DENIED, (method, caller_of["pair"][0], code)
    # In the name of a worker that lives, whose incarnation the caller knows.
    theirs = stubs.cluster.LeaseRequest(registration=stubs.cluster.RegisterRequest(worker=decode)).SerializeToString()
    assert outcome(router, lease, theirs, **who("decode", "other")) in REFUSED
    assert set(workers) == {w.worker.instance.instance_id for w in listed(router, **who("operator"))}


def test_processes_with_wrong_certificates_do_not_join(secured, ours, tiny_model, tmp_path):
    theirs = Authority(tmp_path / "theirs", "theirs")
    wrong_role = ours.flags("decode", name="as-prefill", uris=["baton://prefill"])
    expired = ours.flags("decode", name="expired", expired=True)
    for what, flags, words in (("another role", wrong_role, "expected URI:baton://decode"),
                               ("expired", expired, "its time is over")):
        done = subprocess.run([str(clusters.BATON), "worker", "--model-path", tiny_model, "--disaggregation-mode",
                               "decode", "--router-address", secured.cluster_target, *map(str, flags)],
                              capture_output=True, text=True, check=False, timeout=60 * clusters.PATIENCE)
        assert done.returncode != 0 and words in done.stderr, (what, done.stderr)
    (port,) = clusters.free_ports(1)
    for name, flags in (("without", []), ("foreign", theirs.flags("decode"))):
        stranger = clusters.Process(name, ["worker", "--model-path", tiny_model, "--disaggregation-mode", "decode",
                                           "--router-address", secured.cluster_target, "--instance-id", name,
                                           "--metrics-port", port, *SMALL, *flags], tmp_path, dict(os.environ))
        stranger.start()
        try:
            clusters.wait_until(lambda at=stranger: "registration at" in at.log(), 60, f"{name}: to be refused")
        finally:
            assert stranger.stop() == 0, stranger.log()
    assert serves(secured)


def test_drain_shows_an_operators_certificate(secured, ours):
    for flags in ([], ours.flags("prefill", name="not-an-operator")):
        done = drain(secured, "decode-1", *flags)
        assert done.returncode != 0, done
    done = drain(secured, "decode-7", *ours.flags("operator"))
    assert "no worker decode-7 is registered" in done.stderr, done


# ---- The token ----


def test_a_token_keeps_out_who_has_it_not(tiny_model, tmp_path):
    token = tmp_path / "token"
    token.write_text("# since spring\nsesame\n")
    flags = ["--cluster-token-file", token]
    with clusters.Cluster(tiny_model, tmp_path, stages=2, flags=[*SMALL, *flags], router_flags=flags) as cluster:
        assert serves(cluster)
        workers = listed(cluster.cluster_target, token="sesame")
        calls = [(cluster.cluster_target, f"/baton.v1.Cluster/{name}")
                 for name in ("Lease", "Find", "Drain", "List")]
        for worker in workers:
            service = "Decode/Abort" if worker.worker.role == stubs.cluster.ROLE_DECODE else "Prefill/Abort"
            calls += [(worker.worker.grpc_address, f"/baton.v1.{service}"),
                      (worker.worker.grpc_address, "/baton.v1.Worker/Announce")]
        for target, method in calls:
            for shown in (None, "Sesame", "sesam", "sesame2"):
                assert outcome(target, method, token=shown) == grpc.StatusCode.UNAUTHENTICATED, (method, shown)
        # Nothing of the cluster is at the clients' port, whatever is shown there.
        assert outcome(cluster.target, "/baton.v1.Cluster/Drain", token="sesame") == grpc.StatusCode.UNIMPLEMENTED
        assert "shows no cluster token" in drain(cluster, "decode-0").stderr
        assert drain(cluster, "decode-0", *flags).returncode == 0


def test_up_gives_its_processes_what_they_need(tiny_model, ours, tmp_path):
    (tmp_path / "token").write_text("sesame\n")
    flags = ours.flags("up", uris=[f"baton://{role}" for role in ("router", "prefill", "decode", "operator")])
    with Up(tiny_model, *flags, "--cluster-token-file", tmp_path / "token") as up:
        up.wait_line("cluster ready")


# ---- Changes under load ----


@contextlib.contextmanager
def unharmed(cluster):
    """Requests all the while, of which none may fail."""
    with Load(lambda: cluster.target, PROMPTS, streams=4) as load:
        load.wait_for(4, 60 * clusters.PATIENCE)
        yield load
        load.wait_for(8, 60 * clusters.PATIENCE)
    assert not load.failures and not load.wrong, (load.failures, load.wrong)


def test_a_token_changes_under_load(tiny_model, tmp_path):
    token, old, new = tmp_path / "token", tmp_path / "old", tmp_path / "new"
    replace(token, "token-0\n")
    flags = ["--cluster-token-file", token]
    with clusters.Cluster(tiny_model, tmp_path, stages=2, flags=[*SMALL, *flags], router_flags=flags) as cluster:
        def everywhere(text, times):
            replace(token, text)
            clusters.wait_until(lambda: all(process.log().count("has been read again") >= times
                                            for process in cluster.processes.values()), 60, f"{text!r} to be read")
        with unharmed(cluster):
            for turn in range(ROUNDS):
                old.write_text(f"token-{turn}\n")
                new.write_text(f"token-{turn + 1}\n")
                everywhere(old.read_text() + new.read_text(), 3 * turn + 1)
                everywhere(new.read_text() + old.read_text(), 3 * turn + 2)
                everywhere(new.read_text(), 3 * turn + 3)
                assert "wrong cluster token" in drain(cluster, "nobody", "--cluster-token-file", old).stderr
                assert "no worker nobody" in drain(cluster, "nobody", "--cluster-token-file", new).stderr


def test_certificates_and_their_authority_change_under_load(tiny_model, tmp_path):
    authorities = [Authority(tmp_path / f"authority-{turn}", f"authority {turn}") for turn in range(ROUNDS + 1)]
    bundle = tmp_path / "ca.crt"
    roles = ("router", "prefill", "decode")

    def install(authority):
        for role in roles:
            pair = authority.issue(role, f"baton://{role}", host=HOST)
            for path, kind in zip(pair, ("crt", "key")):
                replace(tmp_path / f"{role}.{kind}", path.read_text())

    def flags(role):
        return ["--cluster-tls-cert", tmp_path / f"{role}.crt", "--cluster-tls-key", tmp_path / f"{role}.key",
                "--cluster-tls-ca", bundle]
    replace(bundle, authorities[0].certificate.read_text())
    install(authorities[0])
    with clusters.Cluster(tiny_model, tmp_path, stages=2, flags=SMALL, router_flags=flags("router"),
                          prefill_flags=flags("prefill"), decode_flags=flags("decode")) as cluster:
        def code(target, trusts, authority):
            return outcome(target, "/grpc.health.v1.Health/Check", authority=trusts.certificate,
                           pair=authority.issue("operator", "baton://operator"))
        with unharmed(cluster):
            for before, after in zip(authorities, authorities[1:]):
                targets = [cluster.cluster_target, *(w.worker.grpc_address for w in listed(
                    cluster.cluster_target, authority=before.certificate,
                    pair=before.issue("operator", "baton://operator")))]

                def everywhere(trusts, authority, wanted, what, targets=targets):
                    clusters.wait_until(lambda: all(code(target, trusts, authority) in wanted for target in targets),
                                        60, what)
                served = (grpc.StatusCode.OK,)
                replace(bundle, before.certificate.read_text() + after.certificate.read_text())
                everywhere(before, after, served, "both authorities to be accepted")
                install(after)
                everywhere(after, after, served, "the new certificates to be shown")
                replace(bundle, after.certificate.read_text())
                everywhere(after, before, OUTSIDE, "the old authority to be refused")
            # Who connects anew meets the new ones at both ends.
            cluster.add_decode("late").start()
            clusters.wait_until(lambda: cluster.metric("router", "baton_ready_pairs") == 2, 60, "a late worker to join")


def test_api_keys_change_under_load(tiny_model, tmp_path):
    keys = tmp_path / "keys"
    replace(keys, "key-0\n")
    with clusters.Cluster(tiny_model, tmp_path, stages=1, flags=SMALL,
                          router_flags=["--api-key-file", keys, "--api-key", "always"]) as cluster:
        def status(key):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            return cluster.post("/v1/completions", {"model": pathlib.Path(tiny_model).name, "prompt": "x",
                                                    "max_tokens": 2}, headers=headers)[0]
        assert [status(key) for key in ("always", "key-0", "key-1", None)] == [200, 200, 401, 401]
        with Client(cluster.target) as client, pytest.raises(grpc.RpcError) as raised:
            client.inference.GetModelInfo(stubs.inference.GetModelInfoRequest(), timeout=10)
        assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
        seen, current, over = [], ["key-0"], threading.Event()

        def ask():
            while not over.is_set():
                seen.append(status(current[0]))
        thread = threading.Thread(target=ask)
        thread.start()
        try:
            for turn in range(ROUNDS):
                replace(keys, f"key-{turn}\nkey-{turn + 1}\n")
                clusters.wait_until(lambda new=f"key-{turn + 1}": status(new) == 200, 30, "the new key")
                current[0] = f"key-{turn + 1}"
                before = len(seen)
                clusters.wait_until(lambda: len(seen) > before + 1, 30, "the clients to move")
                replace(keys, f"key-{turn + 1}\n")
                clusters.wait_until(lambda old=f"key-{turn}": status(old) == 401, 30, "the old key's end")
        finally:
            over.set()
            thread.join()
        assert set(seen) == {200}, seen


# ---- The clients' port ----


def test_the_clients_grpc_port_speaks_tls(tiny_model, tmp_path):
    authority = Authority(tmp_path / "web", "web")
    certificate, key = authority.issue("front", host=HOST)
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.check_hostname = False
    with clusters.Cluster(tiny_model, tmp_path, stages=1, flags=SMALL, tls=context,
                          router_flags=["--ssl-certfile", certificate, "--ssl-keyfile", key]) as cluster:
        method = "/baton.v1.Inference/GetModelInfo"
        assert outcome(cluster.target, method, authority=authority.certificate) == grpc.StatusCode.OK
        assert outcome(cluster.target, method) in OUTSIDE
        another = Authority(tmp_path / "another", "another")
        fresh = another.issue("front", host=HOST)
        for path, at in zip(fresh, (certificate, key)):
            replace(at, path.read_text())
        clusters.wait_until(lambda: outcome(cluster.target, method, authority=another.certificate)
                            == grpc.StatusCode.OK, 30, "the new certificate")


@pytest.mark.parametrize("flags, warned", [([], True), (["--cluster-token-file", "token"], False),
                                           (["--cluster-host", "127.0.0.1"], False)])
def test_an_open_listener_warns(tiny_model, tmp_path, flags, warned):
    (tmp_path / "token").write_text("sesame\n")
    flags = [tmp_path / flag if flag == "token" else flag for flag in flags]
    router = clusters.Process("router", ["router", "--model-path", tiny_model, "--port", 0, "--grpc-port", 0,
                                         "--cluster-port", 0, "--host", "0.0.0.0", *flags], tmp_path, dict(os.environ))
    router.start()
    try:
        clusters.wait_until(lambda: "ready for workers" in router.log(), 60, "the router")
        assert ("does not authenticate its callers" in router.log()) == warned, router.log()
    finally:
        router.stop()


@pytest.mark.parametrize("flags, words", [
    (["--cluster-tls-cert", "x"], "cluster_tls_key"), (["--cluster-token-file", "/no/such"], "/no/such"),
    (["--api-key-file", "/dev/null"], "has no secret")])
def test_files_that_can_not_serve_end_the_start(tiny_model, flags, words):
    done = subprocess.run([str(clusters.BATON), "router", "--model-path", tiny_model, "--port", "0", "--grpc-port", "0",
                           "--cluster-port", "0", *flags], capture_output=True, text=True, check=False,
                          timeout=60 * clusters.PATIENCE)
    assert done.returncode == 2 and words in done.stderr, done
