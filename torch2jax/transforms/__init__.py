"""PyTorch's transformations within translated code, by JAX's: `torch.autograd`, `torch.func` and `torch.vmap`.

To read: `runs.py` has the runs of a function, of which each finds out what the next one needs: a tape, its inputs
(`inputs.py`, `retrace.py`), Python's objects as they were (`outer_state.py`). `tape.py` is the record of `.backward()`,
a stack of JAX linearizations (`linearization.py`); `engine.py` and `backward.py` go back through it, `hooks.py` has the
user's code on that way. `function.py` is `torch.autograd.Function`, with `function_derivative.py` and
`function_residuals.py`; `forward_ad.py` is forward mode. `func.py` is `torch.func`, and `vmap.py` `torch.vmap`.

Rooms from `calls/` up import this one. It knows rules and traces, not the special tensors of `values/`.
"""
