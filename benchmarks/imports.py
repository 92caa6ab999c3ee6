"""How long `import torch2jax` takes where PyTorch and JAX have been imported.

    python -m benchmarks.imports [--rounds 5]

Each round is a process of its own; the first one is not counted, in which Python compiles what it has not yet. The best
round counts, in seconds of the processor and of the clock. It is to take 0.15 s at most.
"""

import argparse
import json
import subprocess
import sys

_ROUND = """
import json, time, torch, jax
processor, clock = time.process_time(), time.perf_counter()
import torch2jax
print(json.dumps([time.process_time() - processor, time.perf_counter() - clock]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    command = [sys.executable, "-W", "ignore", "-c", _ROUND]
    rounds = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(arguments.rounds + 1)
    ]
    processor, clock = map(min, zip(*rounds[1:], strict=True))
    print(f"import torch2jax: {processor:.3f} s of the processor, {clock:.3f} s of the clock")


if __name__ == "__main__":
    main()
