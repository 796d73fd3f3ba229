"""Runs an operation of another library for the benchmark harness (../src/peer.rs), which interleaves it with ours.

    python peer.py torch|numpy

Each line of input is JSON {"setup": statements or null, "call": expression, "runs": n}; each line of output
{"seconds": [...], "error": null or text}. The setup is followed by one run that is not timed.
"""
import json
import os
import sys
import time

library = sys.argv[1]
scope = {"time": time}
if library == "torch":
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    scope["torch"] = torch
elif library == "numpy":
    import numpy

    generator = numpy.random.default_rng(0)
    scope["numpy"] = numpy
    scope["random"] = lambda rows, cols: generator.standard_normal((rows, cols), dtype=numpy.float32)
else:
    sys.exit(f"unknown library {library}")

for line in sys.stdin:
    request = json.loads(line)
    seconds, error = [], None
    try:
        call = compile(request["call"], "<call>", "eval")
        if request["setup"]:
            exec(request["setup"], scope)
            eval(call, scope)
        for _ in range(request["runs"]):
            start = time.perf_counter()
            eval(call, scope)
            seconds.append(time.perf_counter() - start)
    except Exception as e:  # reported to the harness, which stops
        error = repr(e)
    print(json.dumps({"seconds": seconds, "error": error}), flush=True)
