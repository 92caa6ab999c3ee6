"""Names to write instead of unknown ones: the nearest, and the equivalents of what other packages have.

docs/coming-from.md has the table of the packages that connect PyTorch and JAX.
"""

import difflib
import dis
import sys
from collections.abc import Iterable

_LISTED = 5

INSTEAD: dict[str, tuple[str, str]] = {
    "Environment": ("torchax", "nothing: translated code needs no environment, t2j(module) is a JAX function"),
    "JittableModule": ("torchax", "jax.jit(t2j(module)), with the weights in state_dict="),
    "call_jax": ("torchax", "j2t(function)(tensor)"),
    "call_torch": ("torchax", "t2j(function)(array); torch2jax(function, *examples) runs it in PyTorch"),
    "default_env": ("torchax", "nothing: translated code needs no environment, t2j(module) is a JAX function"),
    "disable_globally": ("torchax", "nothing: PyTorch stays as it is outside of translated calls"),
    "disable_temporarily": ("torchax", "nothing: PyTorch stays as it is outside of translated calls"),
    "enable_globally": ("torchax", "nothing: t2j(module) is a JAX function, and the module stays as it is"),
    "enable_temporarily": ("torchax", "nothing: t2j(module) is a JAX function, and the module stays as it is"),
    "extract_jax": ("torchax", "f = t2j(model); params, buffers = f.split(); f(x, state_dict=params | buffers)"),
    "interop": ("torchax", "t2j and j2t, of tensors, arrays and functions"),
    "jax_jit": ("torchax", "jax.jit(t2j(function)); j2t(jax.jit(t2j(function))) for tensors"),
    "jax_value_and_grad": ("torchax", "jax.value_and_grad(t2j(function))"),
    "jax_view": ("torchax", "t2j(tensor)"),
    "torch_view": ("torchax", "j2t(array)"),
    "RngPooper": ("the other torch2jax", "a key for each call: f(x, rng=jax.random.key(0))"),
    "Torchish": ("the other torch2jax", "torch.Tensor, of which tensors in translated code are instances"),
    "auto_implements": ("the other torch2jax", "implements(torch_function)(jax_function)"),
    "connect": ("the other torch2jax", "implements(torch_function)(jax_function)"),
    "j2t_array": ("the other torch2jax", "j2t(array)"),
    "j2t_function": ("the other torch2jax", "j2t(function)"),
    "t2j_array": ("the other torch2jax", "t2j(tensor)"),
    "t2j_function": ("the other torch2jax", "t2j(function)"),
    "t2j_module": ("the other torch2jax", "t2j(module)"),
    "wrap_torch2jax": ("wrap-torch2jax", "torch2jax(function, *examples)"),
    "compile_extension": ("wrap-torch2jax", "nothing: there is nothing to compile"),
    "jax2torch": ("jax2torch", "j2t(function)"),
    "jax_to_torch": ("torch-jax-interop", "j2t(array)"),
    "jax_to_torch_function": ("torch-jax-interop", "j2t(function)"),
    "torch_module_to_jax": ("torch-jax-interop", "t2j(module)"),
    "torch_to_jax": ("torch-jax-interop", "t2j(tensor)"),
}
"""For each name its package, and what to write here."""


def error_of(module: str, name: str) -> Exception:
    """The exception for an attribute that `module` lacks: for ``from module import name``, an ImportError.

    Called by the module's ``__getattr__``.
    """
    package, instead = INSTEAD.get(name, ("", ""))
    given = f"{name} is of {package}. Here: {instead}; see docs/coming-from.md"
    frame = sys._getframe(2)
    if instead and dis.opname[frame.f_code.co_code[frame.f_lasti]] == "IMPORT_FROM":
        return ImportError(f"cannot import name {name!r} from {module!r}: {given}", name=module)
    missing = f"module {module!r} has no attribute {name!r}"
    return AttributeError(f"{missing}: {given}" if instead else missing, name=name)


def how_to_install(extra: str) -> str:
    """The command that installs an extra of this package; on PyPI its name is another project's."""
    return f"pip install '.[{extra}]' in the folder of torch2jax's source"


def nearest(name: str, names: Iterable[str], count: int = 3) -> str:
    """The names that may have been meant by an unknown one, for the end of a message: or else those that there are."""
    names = [each for each in names if each]
    near = difflib.get_close_matches(name, names, n=count, cutoff=0.6)
    if near:
        return f" (nearest: {', '.join(map(repr, near))})"
    more = ", ..." if len(names) > _LISTED else ""
    return f" (there are {', '.join(map(repr, names[:_LISTED]))}{more})" if names else ""
