"""A benchmark that wants a machine at rest says when it was not."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))

import rest  # noqa: E402

# user nice system idle iowait irq softirq steal guest guest_nice, in hundredths.
BEFORE = rest.read("cpu  1000 0 500 8000 0 10 20 5 0 0\ncpu0 1 2 3\n", 2.0, 100)


def later(worked, idle, softirq, steal, own):
    text = f"cpu  {1000 + worked} 0 500 {8000 + idle} 0 10 {20 + softirq} {5 + steal} 0 0\n"
    return rest.between(BEFORE, rest.read(text, 2.0 + own, 100))


def test_its_own_work_is_no_load_nor_are_interrupts():
    verdict = later(worked=900, idle=50, softirq=50, steal=0, own=9.0)
    assert verdict.known and not verdict.busy and verdict.line("P2") == ""
    assert verdict.flat() == {"busy": False, "others_cpu_share": 0.0, "stolen_cpu_share": 0.0}


def test_work_of_others_is_told_with_how_much_it_was():
    verdict = later(worked=900, idle=100, softirq=0, steal=0, own=6.0)
    assert verdict.busy
    assert "other processes had 30% of the processors" in verdict.line("P2, P3") and "P2, P3" in verdict.line("P2, P3")
    assert verdict.flat("timed_") == {"timed_busy": True, "timed_others_cpu_share": 0.3, "timed_stolen_cpu_share": 0.0}


def test_a_host_that_gives_the_processors_to_others_is_busy():
    verdict = later(worked=500, idle=450, softirq=0, steal=50, own=5.0)
    assert verdict.busy and "the host kept 5%" in verdict.line("P2")


def test_a_system_that_counts_nothing_is_not_taken_for_one_at_rest():
    verdict = rest.between(rest.read("cpu", 0.0, 100), rest.read("cpu", 1.0, 100))
    assert not verdict.known and verdict.flat()["busy"] is None and "not known" in verdict.line("P2")


def test_children_that_were_waited_for_are_its_own():
    before = rest.now()
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    after = rest.now()
    assert after.own > before.own and after.total >= before.total
