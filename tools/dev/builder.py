"""What `./dev image` and `./dev package` share: running other programs, and ending with one line that says why not."""

import subprocess
import sys

MESSAGE_CHARACTERS_MAX = 2000


class Unusable(Exception):
    """This machine can't give the build something; the message says what."""


def output_of(*command, **more):
    """Standard output of a command that ends well; otherwise Unusable, with the end of what it said."""
    try:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **more)
    except OSError as error:
        raise Unusable(str(error)) from error
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip()
        raise Unusable(f"{' '.join(map(str, command))}: {said[-MESSAGE_CHARACTERS_MAX:]}")
    return done.stdout


def exit_code(name, build):
    """0 after `build()`, or 1 after a line that begins with the name of the program."""
    try:
        build()
    except Unusable as reason:
        print(f"{name}: {reason}", file=sys.stderr)
        return 1
    return 0
