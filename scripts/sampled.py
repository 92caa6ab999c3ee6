"""A plugin of pytest: ``pytest -p scripts.sampled --sample 1500`` runs so many of the tests, in a random order.

The order is the same in each run; so those of a smaller sample are among those of a larger one.
"""

import random


def pytest_addoption(parser):
    parser.addoption("--sample", type=int, default=0, help="how many tests to run, 0 for all")


def pytest_collection_modifyitems(config, items):
    random.Random(0).shuffle(items)
    count = config.getoption("--sample")
    if count and len(items) > count:
        config.hook.pytest_deselected(items=items[count:])
        del items[count:]
