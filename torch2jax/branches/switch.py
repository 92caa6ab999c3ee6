"""Whether conditions and loops are read from the source; else they are followed by paths alone (`paths.py`).

A switch for developers, while both stand: ``TORCH2JAX_CONTROL=paths`` turns the former off.
"""

import os

is_on = os.environ.get("TORCH2JAX_CONTROL") != "paths"
