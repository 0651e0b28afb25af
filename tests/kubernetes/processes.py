"""The node's own processes: started with a log each, awaited, and stopped in order."""

import http.client
import os
import subprocess
import time


class Died(RuntimeError):
    pass


def tail(path, lines=5):
    try:
        return "".join(path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)[-lines:])
    except OSError:
        return ""


def wait_until(predicate, seconds, what, pause=0.2):
    """Polls `predicate` until it is true and returns its value; TimeoutError names `what` and the last error."""
    deadline = time.monotonic() + seconds
    error = None
    while time.monotonic() < deadline:
        try:
            value = predicate()
            if value:
                return value
            error = None
        except (OSError, LookupError, ValueError, http.client.HTTPException) as caught:
            error = caught
        time.sleep(pause)
    raise TimeoutError(f"waited {seconds:.0f} s for {what}" + (f": {error}" if error else ""))


class Processes:
    def __init__(self, log_folder):
        self.log_folder = log_folder
        self.running = {}

    def start(self, name, *command):
        with open(self.log_folder / f"{name}.log", "ab") as log:
            # Its own session: Ctrl-C is the harness's to handle, or the node would vanish while it reports.
            self.running[name] = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                                                  stdout=log, stderr=log, start_new_session=True, env=os.environ)

    def alive(self, name):
        return self.running[name].poll() is None

    def wait_ready(self, name, probe, seconds=120):
        """Until probe() is true; a process that ends meanwhile is reported with the end of its log."""
        def ready():
            if not self.alive(name):
                raise Died(f"{name} ended with {self.running[name].returncode}:\n"
                           + tail(self.log_folder / f"{name}.log"))
            return probe()
        wait_until(ready, seconds, f"{name} to be ready (its log: {self.log_folder / name}.log)")

    def stop(self, name, seconds=20):
        process = self.running.pop(name, None)
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop_all(self):
        for name in reversed(list(self.running)):
            self.stop(name)
