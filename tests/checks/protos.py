"""buf's opinion of proto/: its lint, and its search for what breaks the released baseline.

    ./dev check protos

buf comes from npm into a folder of its own; where npm's registry is not reached the check is skipped and
says so. What Debian's protoc can compare is in tests/tools/test_proto.py, for every day.
"""

import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))

import registries  # noqa: E402
from tally import Tally  # noqa: E402

PACKAGE = "@bufbuild/buf@1"


def main():
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="baton-buf-") as directory:
        try:
            registries.npm_install(directory, PACKAGE)
        except registries.NotReached as reason:
            tally.skip("buf", str(reason))
            return tally.finish()
        buf = pathlib.Path(directory) / "node_modules/.bin/buf"
        for arguments in (["lint"], ["breaking", "--against", "proto/baseline.binpb"]):
            tally.step(f"buf {arguments[0]}", subprocess.run([buf, *arguments], cwd=ROOT).returncode == 0)
        tally.step("buf finds a planted break", finds_a_break(buf, pathlib.Path(directory)))
    return tally.finish()


def finds_a_break(buf, directory):
    """Whether buf, with our configuration and baseline, complains of a renumbered field."""
    tree = directory / "tree"
    tree.mkdir()
    subprocess.run(["cp", "-r", "--parents", "buf.yaml", "proto", f"{tree}/"], cwd=ROOT, check=True)
    path = tree / "proto/baton/v1/inference.proto"
    text = path.read_text(encoding="utf-8")
    assert "int32 cached_tokens = 3;" in text
    path.write_text(text.replace("int32 cached_tokens = 3;", "int32 cached_tokens = 33;"), encoding="utf-8")
    done = subprocess.run([buf, "breaking", "--against", "proto/baseline.binpb"], cwd=tree, capture_output=True,
                          text=True)
    return done.returncode != 0 and "cached_tokens" in done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
