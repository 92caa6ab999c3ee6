"""Runs samples under switches of JAX's, and prints what fails or gives other numbers.

python -m tests.switches                       # everything
python -m tests.switches checking_leaks 'vmap*'
"""

import argparse
import fnmatch

from . import SAMPLES, SWITCHES, is_excluded
from .agreement import prepare, tried


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.switches", description=__doc__)
    parser.add_argument("switch", nargs="?", default="*")
    parser.add_argument("sample", nargs="?", default="*")
    options = parser.parse_args()
    prepare()
    total = failed = 0
    for switch in fnmatch.filter(SWITCHES, options.switch):
        for sample in fnmatch.filter(SAMPLES, options.sample):
            if is_excluded(switch, sample):
                continue
            total += 1
            wrong = tried(switch, sample)
            if wrong is not None:
                failed += 1
                print(f"{switch} | {sample} | {' '.join(wrong.split())[:300]}", flush=True)
    print(f"{total - failed} of {total} passed")


if __name__ == "__main__":
    main()
