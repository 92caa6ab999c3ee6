"""``python -m torch2jax_cli``: the command ``torch2jax``."""

from . import main

if __name__ == "__main__":
    main()
