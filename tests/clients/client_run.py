"""How `./dev check clients` serves the model, and how it runs a client of it to its end."""

import os
import subprocess

KEY = "a-key"
MODEL = "tiny"  # The name under which it is served; OpenAI's checks know it.


def run(command, timeout=600, environment=None, **more):
    """A client's end, within ten minutes if not told otherwise; shows what it said last if it failed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=timeout,
                          env={**os.environ, "NO_PROXY": "127.0.0.1", **(environment or {})}, **more)
    if done.returncode != 0:
        print("\n".join((done.stdout + done.stderr).splitlines()[-25:]))
    return done
