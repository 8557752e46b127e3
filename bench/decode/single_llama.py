"""The arm of llama.cpp in `bench.decode.single`, by llama-cpp-python, in whatever interpreter has that: it needs no
nodewire.

python bench/decode/single_llama.py GGUF THREADS reads lines from standard input, as `bench.decode.single_arm`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

CONTEXT = 512


def main() -> None:
    import llama_cpp

    model, threads = sys.argv[1], int(sys.argv[2])
    llama: Any = llama_cpp.Llama(
        model, n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, verbose=False, n_gpu_layers=0
    )
    system = llama_cpp.llama_print_system_info().decode()
    print(json.dumps({"version": llama_cpp.__version__, "kernels": {"all": system}}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        llama.reset()
        made = []
        began_s, first_s, cpu_s = time.perf_counter(), 0.0, 0.0
        for token in llama.generate(asked["prompt"], temp=0.0, repeat_penalty=1.0):
            made.append(int(token))
            if len(made) == 1:
                first_s, cpu_s = time.perf_counter() - began_s, time.process_time()
            if len(made) == asked["tokens"]:
                break
        whole_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        print(json.dumps({"made": made, "first_s": first_s, "rest_s": whole_s - first_s, "cpu_s": cpu_s}), flush=True)


if __name__ == "__main__":
    main()
