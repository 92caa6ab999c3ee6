"""A sample of everything under each switch of JAX's that a user may have on.

CI runs some of them (`tests/test_switches.py`); `python -m tests.switches` runs every sample under every
switch, and `python -m tests.switches.database` entries of the operator database.
"""

from .samples import SAMPLES, Sample
from .switches import SWITCHES, is_excluded

__all__ = ["SAMPLES", "SWITCHES", "Sample", "is_excluded"]
