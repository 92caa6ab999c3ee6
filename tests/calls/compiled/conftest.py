"""What tests of compiled parts share."""

import jax
import pytest


@pytest.fixture
def compilations():
    """The names of what XLA compiles meanwhile."""
    found: list[str] = []

    def listen(event: str, _seconds: float, **options) -> None:
        if event.endswith("backend_compile_duration"):
            found.append(options.get("fun_name", "?"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)
