#!/usr/bin/env python3
"""Writes common/engine/attention/testdata/rope.json: the frequencies and the magnitude that Hugging Face's
transformers gives each kind of rope scaling, for //common/engine:rotary_test.

Only needed to make the file anew:

    python3 -m venv venv
    venv/bin/pip install torch transformers==4.46.3 'numpy<2'
    venv/bin/python tests/parity/rope_fixtures.py common/engine/attention/testdata/rope.json

In that version yarn's and longrope's original length is max_position_embeddings alone, so that the
cases have it there.
"""

import json
import pathlib
import sys

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

SHAPE = dict(hidden_size=256, num_attention_heads=4, rope_theta=1e6, max_position_embeddings=4096)
DIVISORS = [1 + i / 8 for i in range(32)]
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=1024)
CASES = [
    (dict(), dict(rope_type="linear", factor=4.0)),
    (dict(), dict(rope_type="llama3", **LLAMA3)),
    (dict(), dict(rope_type="yarn", factor=4.0)),
    (dict(rope_theta=10000.0), dict(rope_type="yarn", factor=40.0)),
    (dict(max_position_embeddings=32768), dict(rope_type="yarn", factor=4.0, beta_fast=16, beta_slow=2)),
    (dict(), dict(rope_type="yarn", factor=4.0, attention_factor=1.25)),
    (dict(), dict(rope_type="longrope", factor=8.0, short_factor=DIVISORS, long_factor=DIVISORS)),
    (dict(), dict(rope_type="longrope", factor=8.0, attention_factor=1.5, short_factor=DIVISORS,
                  long_factor=DIVISORS)),
]


def main():
    cases = []
    for shape, scaling in CASES:
        config = transformers.LlamaConfig(**{**SHAPE, **shape}, rope_scaling=dict(scaling))
        frequencies, magnitude = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu")
        cases.append(dict(
            config={**SHAPE, **shape, "rope_scaling": scaling},
            frequencies=[float(f"{x:.9g}") for x in frequencies.tolist()],
            magnitude=magnitude,
        ))
    made_by = f"transformers {transformers.__version__}"
    pathlib.Path(sys.argv[1]).write_text(json.dumps(dict(made_by=made_by, cases=cases)) + "\n")


if __name__ == "__main__":
    main()
