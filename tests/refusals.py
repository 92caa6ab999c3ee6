"""What a function refuses: its error, for tests to compare with that of another."""

import pytest

__all__ = ["error_of", "refusal"]


def refusal(function, *args) -> Exception | None:
    """The error that a call raises, or None."""
    try:
        function(*args)
    except Exception as error:
        return error
    return None


def error_of(function, *args) -> Exception:
    """The error that a call raises; the test fails if it raises none."""
    error = refusal(function, *args)
    return pytest.fail("nothing was refused") if error is None else error
