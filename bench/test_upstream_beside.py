"""`python3 bench/test_upstream_beside.py`: how tries before several gateways are seen and judged. Nothing is started, no time passes."""

import argparse
import os
import types
import unittest
from unittest import mock

import upstream_beside as beside
import upstream_outside as outside
import upstream_peers as peers
from upstream_engines import processor_s
from upstream_outside import GONE, LOOK_S, MAX_TOKENS, NEVER, PHASES, STAYED, TO_ITS_END, WAYS, Outside

ROW = ("late decode", True, "close")


def one(gateway, row=ROW, outcome=GONE, seconds=0.25, more=0):
    return {"gateway": gateway, "phase": row[0], "stream": row[1], "way": row[2], "outcome": outcome, "seconds": seconds, "more": more}


def found(tries, phases=(ROW[0],), ways=(ROW[2],)):
    about = {"engine": "e", "kind": "llamacpp", "version": "1", "setup": "", "slots": 2, "machine": "m", "date": "d", "prompt_s": 1.0}
    about |= {"gateways": {"direct": "", "kvit": "0", "other": "1"}, "silent": {}, "tokens": [3, 100, 240], "each": 3}
    about["resolution_s"] = LOOK_S
    return {**about, "phases": list(phases), "ways": list(ways), "tries": tries}


def faults(tries, phases=(ROW[0],)):
    """Those of streams, where nobody tries anything else, but of cells that nobody entered."""
    return [fault for fault in beside.faults(found(tries, phases)) if "streaming" in fault and "not left in it" not in fault]


class Seeing(unittest.TestCase):
    def gone(self, looks, present=0, enough=lambda: False):
        """What is said of an engine that these looks show, one after the other, each of which takes a millisecond."""
        clock = types.SimpleNamespace(now=100.0)

        def pass_by(seconds):
            clock.now += seconds

        def look():
            pass_by(0.001)
            return looks.pop(0) if len(looks) > 1 else looks[0]

        passing = types.SimpleNamespace(monotonic=lambda: clock.now, sleep=pass_by)
        engine = types.SimpleNamespace(waiting=None, present=lambda: present)
        side = Outside(engine, types.SimpleNamespace(kind="it"), 2, 60, 150, print)
        with mock.patch.object(outside, "time", passing):
            last, gone = side.gone(100.0, look, enough)
        return [None if moment is None else round(moment, 6) for moment in (last, gone)]

    def test_it_is_gone_with_the_first_look_that_does_not_show_it(self):
        self.assertEqual(self.gone([True, True, False]), [LOOK_S, 2 * LOOK_S + 0.001])
        self.assertEqual(self.gone([False]), [None, 0.001])

    def test_one_that_is_seen_again_was_not_gone(self):
        self.assertEqual(self.gone([False, True, False]), [LOOK_S, 2 * LOOK_S + 0.001])

    def test_a_look_behind_the_end_of_others_says_nothing(self):
        self.assertEqual(self.gone([False], enough=lambda: True), [None, None])

    def test_one_that_never_goes_is_an_error(self):
        for looks, present in (([True], 0), ([False], 1)):
            with self.assertRaisesRegex(RuntimeError, "it: the engine still has"):
                self.gone(looks, present)

    def test_processor_time_is_read(self):
        before = processor_s(os.getpid())
        while processor_s(os.getpid()) == before:
            pass
        self.assertEqual(processor_s(0), 0.0)

    def test_what_became_of_it_in_a_word(self):
        self.assertEqual(outside.outcome(True, False, False, 0), NEVER)
        self.assertEqual(outside.outcome(True, True, True, 0), GONE)
        self.assertEqual(outside.outcome(True, True, False, 3), STAYED)
        self.assertEqual(outside.outcome(False, True, True, MAX_TOKENS), TO_ITS_END)

    def test_fillers_are_as_long_as_the_engine_is_quick(self):
        slow, quick = ({"late": 1.0, "end": 1.0 + seconds} for seconds in (2.0, 1.0))
        self.assertEqual(outside.fillers(quick, 2), 2 * outside.fillers(slow, 2))
        self.assertEqual(outside.fillers({"late": 1.0, "end": 1.0}, 2), outside.FILLER_TOKENS_MAX)


class Judging(unittest.TestCase):
    def test_every_gateway_has_its_turn_in_every_round(self):
        self.assertEqual("".join(beside.rounds(["a", "b", "c"], 4)), "abcbcacababc")

    def test_kvit_may_be_slower_by_one_look_and_no_more(self):
        self.assertEqual(faults([one("kvit", seconds=1.0), one("other", seconds=1.0 - LOOK_S), one("direct", seconds=0.0)]), [])
        self.assertIn("other is quicker", faults([one("kvit", seconds=1.1), one("other", seconds=1.0 - LOOK_S)])[0])
        self.assertIn("other is quicker", faults([one("kvit", seconds=0.8), one("other", outcome=NEVER, seconds=None)])[0])

    def test_the_median_counts_and_not_one_slow_try(self):
        self.assertEqual(faults([one("kvit", seconds=s) for s in (0.2, 9.0, 0.3)] + [one("other", seconds=0.2)]), [])

    def test_kvit_leaves_nothing_running_and_sends_nothing_that_waits(self):
        self.assertIn("to its end", faults([one("kvit", outcome=TO_ITS_END)])[0])
        self.assertIn("came to the engine", faults([one("kvit", ("queued", True, "close"))], ["queued"])[0])

    def test_a_cell_that_nobody_entered_is_a_fault(self):
        nobody = [f"late decode, streaming, close: {name} was not left in it" for name in ("direct", "kvit")]
        self.assertEqual([fault for fault in beside.faults(found([one("other")])) if "streaming" in fault], nobody)


class Writing(unittest.TestCase):
    def test_a_cell_says_what_became_of_its_tries(self):
        self.assertEqual(beside.shown([one("a", seconds=s, more=4) for s in (0.2, 0.4, 5.0)]), "0.4 s, 4 tokens")
        self.assertEqual(beside.shown([one("a", outcome=TO_ITS_END, more=137)]), "to its end, 137 tokens")
        mixed = [one("a"), one("a", outcome=NEVER), one("a", outcome=STAYED)]
        self.assertEqual(beside.shown(mixed), "1 of 3: never came; 1 of 3: 0.2 s; 1 of 3: till a slot was free")
        self.assertEqual(beside.shown([]), "none")

    def test_every_cell_has_its_place(self):
        every = beside.rows(PHASES, WAYS)
        tries = [one(gateway, row) for row in every for gateway in ("direct", "kvit")]
        made = beside.table({**found(tries, PHASES, WAYS), "silent": {"other": "it answers 503"}})
        self.assertEqual(sum(line.startswith("| ") for line in made.splitlines()), 1 + len(every))
        self.assertEqual(made.count("none"), len(every))
        self.assertTrue(made.endswith("other does not serve this engine: it answers 503."))
        self.assertIn("2 slots; kvit 0, other 1; on m", made)


class Starting(unittest.TestCase):
    def test_only_known_gateways(self):
        self.assertEqual(beside.names_of("litellm,vllm-router"), ["litellm", "vllm-router"])
        with self.assertRaisesRegex(argparse.ArgumentTypeError, "`nginx` is none of litellm"):
            beside.names_of("nginx")

    def test_a_script_that_is_not_there_is_named(self):
        with self.assertRaisesRegex(FileNotFoundError, "no/such.sh.*KVIT_TEST_PEERS.*--peer-cmd"):
            peers.peer_command("no/such.sh")
        with mock.patch.dict(os.environ, {peers.ENVIRONMENT: f"bash {__file__}"}):
            self.assertEqual(peers.peer_command(None), f"bash {__file__}")


if __name__ == "__main__":
    unittest.main()
