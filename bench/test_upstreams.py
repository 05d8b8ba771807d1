"""`python3 bench/test_upstreams.py`: what the driver of the cells reads, holds against a cell, and writes. No engine is started."""

import types
import unittest

import upstreams
from upstream_caller import Body, Names, tokens
from upstream_cells import PHASES, WAYS, Cells, Missed, Result, not_applicable, rows
from upstream_engines import counters


def record(**changes):
    plain = {"outcome": {"cause": "client_closed"}, "guarantee": "observed", "waste_bound_tokens": 0, "attempt": 1}
    return {**plain, "tokens": {"generated": 0}, **changes}


def judged(after, others=0, way="close", **changes):
    result = Result("prefill", True, way)
    Cells(None, None, 2, print).judge(result, record(**changes), after, others)
    return result


class Reading(unittest.TestCase):
    def test_a_stream_is_read_however_it_is_cut(self):
        chunks = [b'data: {"choices":[{"delta":{"content":null}}]}\n\n', b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n', b": ok\n\n"]
        wire = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        wire += b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
        for step in (1, 7, len(wire)):
            body = Body()
            for at in range(0, len(wire), step):
                body.push(wire[at : at + step])
            self.assertEqual((body.status, tokens(body.events()), body.ended()), (200, 1, False))
            body.push(b"0\r\n\r\n")
            self.assertTrue(body.ended())

    def test_no_two_prompts_begin_alike(self):
        prompts = [names.prompt(2) for names in (Names(), Names()) for _ in range(2)]
        self.assertEqual(len({prompt.split()[0] for prompt in prompts}), 4)

    def test_counters_are_summed_over_their_labels(self):
        text = '# TYPE a gauge\nvllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_running{engine="1"} 1\nllamacpp:x 1e3\n'
        self.assertEqual(counters(text), {"vllm:num_requests_running": 3.0, "llamacpp:x": 1000.0})


class Judging(unittest.TestCase):
    def test_a_level_is_held_to_the_counters(self):
        self.assertEqual(judged(0).faults, [])
        self.assertEqual(judged(2, others=2).faults, [])
        self.assertIn("still counts 1", judged(1).faults[0])
        late = judged(1, guarantee="best_effort", waste_bound_tokens=80)
        self.assertEqual((late.faults, late.after), ([], 1))

    def test_what_else_is_asserted(self):
        self.assertIn("its cause is", judged(0, way="RST").faults[0])
        self.assertIn("its level is none", judged(0, guarantee=None).faults[0])
        self.assertIn("nothing bounds", judged(0, guarantee="best_effort", waste_bound_tokens=None).faults[0])
        self.assertIn("2 others are in it", judged(1, others=2).faults[0])

    def test_a_run_that_left_its_phase_is_tried_again(self):
        cells = Cells(None, None, 2, print)
        caller = types.SimpleNamespace(head=True, tokens=1, answer=types.SimpleNamespace(status=200))
        for phase in ("before headers", "headers, no token", "prefill"):
            with self.assertRaises(Missed) as missed:
                cells.was_in(phase, caller)
            self.assertTrue(missed.exception.late)
        cells.was_in("early decode", caller)
        with self.assertRaises(Missed):
            cells.fell_in("late decode", record(outcome={"cause": "length"}), "close")


class Writing(unittest.TestCase):
    def found(self):
        cells = [Result(phase, stream, way, "observed", 0) for phase, stream in rows(PHASES) for way in WAYS]
        for cell in cells:
            cell.why_not = not_applicable(cell.phase, cell.stream)
        cells[-1].level, cells[-1].waste, cells[-1].after = "best_effort", 40, 1
        storm = {"wide": True, "left": 300, "levels": {"never sent": 298, "observed": 2}, "at_once": 0, "faults": []}
        about = {"engine": "e", "kind": "llamacpp", "version": "1", "setup": "s", "kvit": "0", "slots": 2, "machine": "m", "date": "d"}
        about["prompt_s"] = 1.0
        return {**about, "tokens": [3, 40, 80], "cells": [vars(cell) for cell in cells], "storms": [storm]}

    def test_every_cell_has_its_place(self):
        made = upstreams.table(self.found())
        self.assertEqual(sum(line.startswith("| ") for line in made.splitlines()), 1 + len(rows(PHASES)))
        self.assertIn("`best_effort`, at most 40 tokens more; 1 still counted", made)
        self.assertEqual(made.count("not applicable"), len(WAYS))
        self.assertIn("298 never sent, 2 `observed`", made)

    def test_faults_name_their_cell(self):
        found = self.found()
        found["cells"][0]["faults"].append("so")
        self.assertEqual(upstreams.faults(found), ["queued, streaming, close: so"])

    def test_only_what_is_between_the_markers_is_replaced(self):
        begin, end = "<!-- made by cargo xtask upstreams: vllm -->", "<!-- end: vllm -->"
        text = f"a\n{begin}\nold\n{end}\nb\n"
        self.assertEqual(upstreams.put(text, "vllm", "new"), f"a\n{begin}\nnew\n{end}\nb\n")
        for broken in (text.replace(end, ""), text + text, text.replace(begin, "x")):
            with self.assertRaises(ValueError):
                upstreams.put(broken, "vllm", "new")


if __name__ == "__main__":
    unittest.main()
