"""Whether conditions and loops are read from the source; else they are followed by paths (`branches/`).

A switch for developers, while both engines stand: ``TORCH2JAX_CONTROL=source`` turns this one on.
"""

import os

is_on = os.environ.get("TORCH2JAX_CONTROL") == "source"
