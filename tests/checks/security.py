"""Who may speak to a cluster's processes: wrong certificates, tokens and greetings; rotations under load, 5 times.

    ./dev check security
    /usr/bin/python3 tests/checks/security.py [--rounds 5]

The unit tests of certificates, secrets and the data plane's gate, then tests/e2e/test_security.py with its changes of
certificates, tokens and API keys repeated, during which no request may fail. The logs stay in .cache/security.
"""

import argparse
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))

from bazel import bazel  # noqa: E402
from end_to_end import run_pytest  # noqa: E402
from tally import Tally  # noqa: E402

LOGS = ROOT / ".cache" / "security"
UNITS = ("//common/rpc:cluster_security_test", "//common/rpc:peer_identity_test", "//common/secrets:secret_set_test",
         "//common/transport:gate_test", "//common/transport:malformed_message_test_tcp",
         "//common/transport:malformed_message_test_pull")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    tally = Tally()
    if bazel("build", "//services/baton") != 0:
        tally.fail("services/baton does not build")
        return tally.finish()
    for unit in UNITS:
        tally.step(unit, bazel("test", unit) == 0)
    environment = dict(os.environ, SECURITY_ROUNDS=str(arguments.rounds))
    run_pytest("test_security", ["tests/e2e/test_security.py"], LOGS, environment).count(tally)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
