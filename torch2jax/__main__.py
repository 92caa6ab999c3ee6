"""``python -m torch2jax``: the command ``torch2jax``, except that PyTorch and JAX are imported first."""

from torch2jax_cli import main

if __name__ == "__main__":
    main()
