"""OpenAI's own Python client against a cluster: completions, chat, streams, errors, and the example."""

import pathlib
import sys
import tempfile

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS / "dev"))

from bazel import bazel  # noqa: E402
from end_to_end import run_pytest  # noqa: E402
from tally import Tally  # noqa: E402


def main():
    tally = Tally()
    if bazel("build", "//services/baton", "//examples/cpp:generate") != 0:
        tally.fail("services/baton does not build")
        return tally.finish()
    with tempfile.TemporaryDirectory() as folder:
        run_pytest("registry", ["tests/e2e", "-m", "registry"], pathlib.Path(folder)).count(tally)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
