"""The parts of `scripts/torch_tests.py`, which runs PyTorch's own tests."""
