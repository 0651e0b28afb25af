"""What a run must not forget when it is interrupted: verdicts, and what was measured and read of the unmutated tree.

One folder for each fingerprint of the tree: a verdict holds for these very sources and tests. Lines are appended and
flushed one by one, so that a killed run loses what it was working on and nothing else.
"""

import json
import pathlib


class State:
    def __init__(self, directory, fingerprint):
        self._folder = pathlib.Path(directory) / "verdicts"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path = self._folder / f"{fingerprint}.jsonl"
        self.verdicts = {}
        if self._path.exists():
            self._read()

    def _read(self):
        kept = []
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                verdict = json.loads(line)
            except ValueError:  # The line that a killed run was writing.
                continue
            self.verdicts[verdict["key"]] = verdict
            kept.append(line)
        # Without the torn line, which the next one would be appended to.
        self._path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def add(self, verdict):
        self.verdicts[verdict["key"]] = verdict
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(verdict) + "\n")


def cached(path, compute):
    """`compute()`'s JSON value, which the file keeps."""
    path = pathlib.Path(path)
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    value = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value), encoding="utf-8")
    new.rename(path)
    return value
