"""Writes the golden files, compares them, or shows programs.

python -m tests.golden                          # writes the files of all rooms
python -m tests.golden views writes             # of some
python -m tests.golden --check                  # shows what differs instead, and fails if something does
python -m tests.golden writes --show 'a row*'   # prints the whole graphs of some programs
"""

import argparse
import fnmatch
import sys
import time
import warnings

from tests.compiling import set_flags


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rooms", nargs="*", help="by default all")
    parser.add_argument("--check", action="store_true", help="write nothing, and show what differs")
    parser.add_argument("--show", metavar="NAME", help="print the programs of that name, which may be a pattern")
    options = parser.parse_args()
    set_flags("--xla_force_host_platform_device_count=8")
    warnings.simplefilter("ignore")

    from . import files

    unknown = set(options.rooms) - files.ROOMS.keys()
    if unknown:
        parser.error(f"no rooms: {', '.join(sorted(unknown))}; there are {', '.join(files.ROOMS)}")
    differs = False
    for room in options.rooms or files.ROOMS:
        if options.show:
            for name, program in files.programs(room).items():
                if fnmatch.fnmatch(name, options.show):
                    print(f"== {name}\n{files.text(program)}")
            continue
        start, found = time.process_time(), files.room_text(room)
        difference = files.difference(room, found)
        differs |= bool(difference)
        if options.check:
            print("\n".join(difference) if difference else f"{room}: the same")
        else:
            (files.FOLDER / f"{room}.txt").write_text(found)
            count = found.count("\n== ")
            print(f"{room}: {count} programs, {len(found) / 1e3:.0f} kB, {time.process_time() - start:.1f} s")
    return int(differs and options.check)


if __name__ == "__main__":
    sys.exit(main())
