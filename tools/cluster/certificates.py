"""Certificates of a cluster for tests, made with openssl."""

import os
import pathlib
import subprocess

CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
ROLES = ("router", "prefill", "decode", "operator")


class Authority:
    def __init__(self, directory, name="authority"):
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.certificate, self.key = self.directory / "ca.crt", self.directory / "ca.key"
        self._openssl("req", "-x509", *CURVE, "-days", "30", "-subj", f"/CN={name}", "-keyout", self.key,
                      "-out", self.certificate)

    def issue(self, name, *uris, host="", expired=False):
        """(certificate, key) with these URIs, and `host` for clients that ask for one; both are renamed into place."""
        at = self.directory
        request, extensions = at / f"{name}.csr", at / f"{name}.ext"
        certificate, key = at / f"{name}.crt", at / f"{name}.key"
        self._openssl("req", *CURVE, "-subj", f"/CN={name}", "-keyout", f"{key}.new", "-out", request)
        names = ",".join([*(f"URI:{uri}" for uri in uris), *([f"DNS:{host}"] if host else [])])
        extensions.write_text("extendedKeyUsage=serverAuth,clientAuth\n"
                              + (f"subjectAltName={names}\n" if names else ""))
        if expired:  # `x509 -req` of OpenSSL 3.0 dates nothing back; `ca` does.
            self._expired(request, extensions, certificate)
        else:
            self._openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key,
                          "-CAcreateserial", "-days", "30", "-extfile", extensions, "-out", f"{certificate}.new")
        os.replace(f"{key}.new", key)
        os.replace(f"{certificate}.new", certificate)
        return certificate, key

    def flags(self, role, name=None, uris=None, host="", expired=False):
        """A process's options, with a certificate of this authority."""
        own = [f"baton://{role}"] if uris is None else uris
        certificate, key = self.issue(name or role, *own, host=host, expired=expired)
        return ["--cluster-tls-cert", certificate, "--cluster-tls-key", key, "--cluster-tls-ca",
                self.certificate]

    def _expired(self, request, extensions, certificate):
        database = self.directory / "database"
        database.write_text("")
        settings = self.directory / "ca.cnf"
        settings.write_text(
            "[ca]\ndefault_ca=own\n[own]\nnew_certs_dir={0}\ndatabase={1}\nrand_serial=yes\ndefault_md=sha256\n"
            "policy=any\nunique_subject=no\n[any]\ncommonName=supplied\n".format(self.directory, database))
        self._openssl("ca", "-batch", "-config", settings, "-cert", self.certificate, "-keyfile", self.key,
                      "-in", request, "-extfile", extensions, "-startdate", "20200101000000Z",
                      "-enddate", "20200102000000Z", "-notext", "-out", f"{certificate}.new")

    @staticmethod
    def _openssl(*arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, text=True)


def replace(path, text):
    """The whole file at once, as whoever reads it sees it."""
    fresh = pathlib.Path(f"{path}.new")
    fresh.write_text(text)
    os.replace(fresh, path)
