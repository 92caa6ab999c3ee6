"""``python -m torch2jax``."""

from .cli import main

if __name__ == "__main__":
    main()
