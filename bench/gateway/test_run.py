"""`python3 bench/gateway/test_run.py`: what the driver of the gateways' benchmark adds up, reads and writes. No gateway is started."""

import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import run  # noqa: E402
from gateways import Process, cpu_ns, family, kinds, memory_bytes  # noqa: E402


def found(**changes):
    def one(p50, cpu):
        return {"p50_us": p50, "p99_us": p50 * 2, "cpu_us": cpu, "came": 1.0, "streams_s": 1000 - p50, "stream_cpu_us": 7, "free_cpu_us": cpu}

    rounds = [
        {run.DIRECT: one(30, 0), "kvit": one(50, 11), "nginx": one(41, 10)},
        {run.DIRECT: one(130, 0), "kvit": one(152, 19), "nginx": one(140, 18)},
        {run.DIRECT: one(40, 0), "kvit": one(61, 12), "litellm": {**one(900, 400), "came": 0.5}},
    ]
    gateways = [
        {"name": name, "version": "1.0", "threads": "1", "missing": name == "envoy"} for name in ("kvit", "nginx", "envoy", "litellm")
    ]
    said = {"machine": "a machine", "date": "a day", "places": "Somewhere.", "streams": 40, "gap_us": 20000, "seconds": 10, "tokens": 16}
    held = {"kvit": {"held_bytes": 20480, "open": 5000}, "litellm": {"held_bytes": 102400, "open": 500}}
    return {**said, "held_streams": 5000, "gateways": gateways, "rounds": rounds, "held": held, "faults": [], **changes}


class Adding(unittest.TestCase):
    def test_what_is_added_is_taken_round_by_round(self):
        rounds = found()["rounds"]
        self.assertEqual(run.added(rounds, "kvit", "p50_us"), 21)
        self.assertEqual(run.added(rounds, "nginx", "p50_us"), 10.5)
        self.assertEqual(run.middle(rounds, "kvit", "cpu_us"), 12)

    def test_the_table_has_a_line_for_each_gateway_that_was_measured(self):
        lines = run.table(found()).splitlines()
        kvit = next(line for line in lines if line.startswith("| kvit"))
        self.assertEqual(kvit, "| kvit 1.0 | 1 | 21 µs | 42 µs | 12.0 µs | 12.0 µs | 7 µs | 939 | 20.0 KiB |")
        litellm = next(line for line in lines if line.startswith("| litellm"))
        self.assertIn("860 µs (50% of the tokens came in time)", litellm)
        self.assertIn("100.0 KiB (500 were opened, and no more)", litellm)
        self.assertIn("not measured", next(line for line in lines if line.startswith("| nginx")))
        self.assertIn("Not there: envoy.", lines)

    def test_the_table_is_put_between_its_markers_or_nowhere(self):
        text = f"before\n{run.BEGIN}\nold\n{run.END}\nafter"
        self.assertEqual(run.put(text, "new"), f"before\n{run.BEGIN}\nnew\n{run.END}\nafter")
        for wrong in ("", text + text, f"{run.END}\n{run.BEGIN}"):
            with self.assertRaises(ValueError):
                run.put(wrong, "new")


def is_running(pid):
    """Whether it is more than an entry that nobody has asked for."""
    try:
        return pathlib.Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


class Processes(unittest.TestCase):
    def test_a_process_and_its_children_are_seen_and_ended(self):
        script = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); print('up'); x = 0\n"
        script += "while True: x += 1"
        with open(os.devnull, "w") as log, Process([sys.executable, "-c", script], None, log, stdout=subprocess.PIPE) as process:
            self.assertEqual(process.child.stdout.readline(), "up\n")
            pids = process.pids()
            self.assertEqual(len(pids), 2)
            before = cpu_ns(pids)
            while cpu_ns(pids) == before:
                pass
            self.assertGreater(memory_bytes(pids), 1 << 20)
        self.assertEqual(family(pids[0]), [pids[0]], "it has no children left")
        for _ in range(200):
            if not is_running(pids[1]):
                break
            time.sleep(0.05)
        self.assertFalse(is_running(pids[1]))

    def test_every_gateway_has_a_command_line_and_a_way_to_install_it(self):
        with tempfile.TemporaryDirectory() as folder:
            for kind in kinds("kvit"):
                kind.path = lambda kind=kind: kind.program
                words = kind.argv(pathlib.Path(folder), 1234, 5678, 2)
                config = pathlib.Path(folder, f"config{kind.config[0]}").read_text() if kind.config else ""
                self.assertIn("5678", config + " ".join(words), kind.name)
                self.assertIn("1234", config + " ".join(words), kind.name)
                self.assertTrue(kind.install, kind.name)


if __name__ == "__main__":
    unittest.main()
