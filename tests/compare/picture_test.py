"""The table and the picture of a comparison, from given rows: picture_test.py TOOLS_COMPARE."""

import sys
import unittest
from xml.etree import ElementTree

FOLDER = sys.argv.pop()
sys.path.insert(0, FOLDER)
import picture  # noqa: E402

GIB = 2**30
ROWS = [
    {"model": "gpt2-124m", "precision": "bf16", "sequence": 256, "peer": "other <tuned>", "tokens_per_second": 100.0,
     "ours_tokens_per_second": 250.0, "ratio": 2.5, "peak_memory_bytes": 6 * GIB, "ours_peak_memory_bytes": 3 * GIB,
     "memory_beyond_state_bytes": 4 * GIB, "ours_memory_beyond_state_bytes": GIB, "memory_beyond_state_ratio": 0.25,
     "ours_roofline_ratio": 0.875},
    {"model": "gpt2-124m", "precision": "bf16", "sequence": 256, "peer": "recorded", "tokens_per_second": 50.0,
     "ours_tokens_per_second": 250.0, "ratio": 5.0, "peak_memory_bytes": None, "ours_peak_memory_bytes": 3 * GIB},
    {"model": "gpt2-124m", "precision": "fp32", "sequence": 1024, "peer": "other <tuned>", "tokens_per_second": 500.0,
     "ours_tokens_per_second": 400.0, "ratio": 0.8, "peak_memory_bytes": 6 * GIB, "ours_peak_memory_bytes": 3 * GIB},
]


class Table(unittest.TestCase):
    def test_has_a_line_for_each_row(self):
        lines = picture.table(ROWS).splitlines()
        self.assertEqual(len(lines), 2 + len(ROWS))
        cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
        self.assertEqual({len(c) for c in cells}, {len(picture.COLUMNS)})
        self.assertTrue(all(set(c) <= {"-", ":"} for c in cells[1]))
        self.assertEqual(cells[2], ["gpt2-124m", "bf16", "256", "other <tuned>", "100.0", "250.0", "2.50", "6.00", "3.00",
                                    "4.00", "1.00", "0.25", "0.88"])
        self.assertEqual(cells[3][7:], ["", "3.00", "", "", "", ""])


class Picture(unittest.TestCase):
    def setUp(self):
        self.root = ElementTree.fromstring(picture.picture(ROWS, "Rates & more"))
        self.name = "{http://www.w3.org/2000/svg}"

    def test_has_a_bar_for_ours_in_each_group_and_for_each_peer(self):
        bars = self.root.findall(f"{self.name}rect")
        self.assertEqual([float(b.get("width")) / float(bars[-1].get("width")) for b in bars],
                         [0.5, 0.2, 0.1, 0.8, 1.0])
        self.assertEqual(bars[0].get("fill"), bars[3].get("fill"), "ours")
        self.assertEqual(bars[1].get("fill"), bars[4].get("fill"), "the same peer")
        self.assertEqual(len({b.get("fill") for b in bars}), 3)

    def test_says_what_is_shown(self):
        texts = [t.text for t in self.root.findall(f"{self.name}text")]
        self.assertEqual(texts[0], "Rates & more")
        for text in ("gpt2-124m, bf16, sequence 256", "gpt2-124m, fp32, sequence 1024", "ours", "other <tuned>",
                     "250.0", "100.0 (ours 2.50 times)"):
            self.assertIn(text, texts)

    def test_holds_everything(self):
        width, height = (float(self.root.get(n)) for n in ("width", "height"))
        for bar in self.root.findall(f"{self.name}rect"):
            self.assertLessEqual(float(bar.get("y")) + float(bar.get("height")), height)
            self.assertLessEqual(float(bar.get("x")) + float(bar.get("width")) + picture.VALUES, width + 1)


if __name__ == "__main__":
    unittest.main()
