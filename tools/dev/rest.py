"""Whether the machine was at rest while a command ran whose figures want that.

    watch = Watch(); subprocess.run(...); print(watch.judge().line("P2, P3"))

What other processes had of the processors is what all processes had less what this one and the children that it has
waited for had; steal is what the host gave to other machines. Pressure and load averages say less: a benchmark's own
processes wait for one another, too.
"""

import dataclasses
import os
import pathlib

STAT = pathlib.Path("/proc/stat")
# Of the processors' time; with less the figures were not seen to move.
OTHERS_MOST = 0.05
STEAL_MOST = 0.02


@dataclasses.dataclass(frozen=True)
class Reading:
    total: float = 0  # Seconds, of all processors together.
    worked: float = 0  # For processes; not for interrupts, which are also the benchmark's own.
    stolen: float = 0
    own: float = 0  # Of this process and of children that have ended.


@dataclasses.dataclass(frozen=True)
class Verdict:
    others: float  # Shares of the processors' time.
    stolen: float
    known: bool  # Whether this system counts at all.

    @property
    def busy(self):
        return self.known and (self.others > OTHERS_MOST or self.stolen > STEAL_MOST)

    def line(self, figures):
        """What people are told; empty: it was at rest."""
        if not self.known:
            return f"whether the machine was at rest is not known: {STAT} counts nothing. It should be for {figures}"
        if not self.busy:
            return ""
        return (f"BUSY: other processes had {self.others:.0%} of the processors meanwhile and the host kept "
                f"{self.stolen:.0%}. {figures} want a machine at rest: run this again on one")

    def flat(self, prefix=""):
        """For a benchmark's flat object."""
        return {f"{prefix}busy": self.busy if self.known else None, f"{prefix}others_cpu_share": round(self.others, 3),
                f"{prefix}stolen_cpu_share": round(self.stolen, 3)}


def read(stat, own_seconds, ticks_per_second):
    """`stat`: the text of /proc/stat."""
    fields = [float(field) / ticks_per_second for field in stat.split("\n", 1)[0].split()[1:9]]
    fields += [0.0] * (8 - len(fields))
    user, nice, system, _, _, _, _, steal = fields
    return Reading(sum(fields), user + nice + system, steal, own_seconds)


def between(before, after):
    total = after.total - before.total
    if total <= 0:
        return Verdict(0.0, 0.0, False)
    others = (after.worked - before.worked) - (after.own - before.own)
    return Verdict(max(others, 0.0) / total, (after.stolen - before.stolen) / total, True)


def now():
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    try:
        stat = STAT.read_text(encoding="ascii")
    except OSError:
        stat = "cpu"
    return read(stat, own, os.sysconf("SC_CLK_TCK"))


class Watch:
    def __init__(self):
        self._before = now()

    def judge(self):
        return between(self._before, now())
