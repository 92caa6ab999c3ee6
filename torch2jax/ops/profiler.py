"""``torch.profiler.record_function`` in translated code: a name in JAX's own profiles."""

import jax
from torch.autograd import profiler

from ..patches import stands_in


@stands_in(profiler.record_function, "__enter__")
def _enter(self):
    self._scope = jax.named_scope(self.name)
    self._scope.__enter__()
    return self


@stands_in(profiler.record_function, "__exit__")
def _exit(self, exc_type, exc_value, traceback):
    self._scope.__exit__(exc_type, exc_value, traceback)
