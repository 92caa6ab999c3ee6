"""A graph as text: one equation a line, the same in each process, and short enough to read as a diff."""

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var
from jax.sharding import AbstractMesh, Mesh

__all__ = ["counted", "full"]

# Parameters that say nothing, as others say the same.
_NOISE = {"ctx_mesh", "donated_invars", "in_layouts", "jvp_jaxpr_fun", "out_layouts", "symbolic_zeros"}
_SMALL = 8
_NOT_SHARDED = ("UnspecifiedValue", "NamedSharding(mesh=AbstractMesh((),axis_types=())")


def full(program: ClosedJaxpr) -> str:
    """All equations."""
    return "\n".join(_Text().lines(program)) + "\n"


def counted(program: ClosedJaxpr) -> str:
    """How often each equation occurs, whatever its operands are called, and a checksum of all the text."""
    counts = Counter(_Text().signatures(program))
    equations = [f"  {count:4} {text}" for text, count in sorted(counts.items())]
    return "\n".join([f"  {counts.total()} equations, {_checksum(full(program).encode())}", *equations]) + "\n"


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]


def _name(number: int) -> str:
    """a, b, ..., z, ba, bb, ..."""
    digits = ""
    while True:
        number, digit = divmod(number, 26)
        digits = chr(ord("a") + digit) + digits
        if number == 0:
            return digits


def _type(aval: Any) -> str:
    return aval.str_short(short_dtypes=True) + ("~" if getattr(aval, "weak_type", False) else "")


class _Text:
    """The text of one program: variables are named in the order in which they appear, through all nested ones."""

    def __init__(self):
        self._names: dict[Var, str] = {}
        self._numbers = itertools.count()
        self._seen: dict[str, str] = {}
        """The names of the nested programs that were printed, by their text."""

    def lines(self, program: ClosedJaxpr) -> Iterator[str]:
        """The lines of a program; constants come first."""
        yield from self._body(program.jaxpr, program.consts, "  ")

    def signatures(self, program: ClosedJaxpr | Jaxpr) -> Iterator[str]:
        """Each equation without names, and those of the programs within."""
        jaxpr = getattr(program, "jaxpr", program)
        for step in jaxpr.eqns:
            plain, nested = self._parameters(step.params)
            operands = [str(_literal(x)) if isinstance(x, Literal) else _type(x.aval) for x in step.invars]
            yield " ".join([step.primitive.name + plain, *operands, "->", *(_type(x.aval) for x in step.outvars)])
            for _, inner in nested:
                yield from self.signatures(inner)

    def _body(self, jaxpr: Jaxpr, consts: Any, indent: str) -> Iterator[str]:
        for variable, const in zip(jaxpr.constvars, consts or [None] * len(jaxpr.constvars), strict=True):
            value = "" if const is None else " " + _array(const)
            yield f"{indent}const {self._declared(variable)}{value}"
        yield " ".join([f"{indent}in", *map(self._declared, jaxpr.invars)])
        for step in jaxpr.eqns:
            yield from self._equation(step, indent)
        yield " ".join([f"{indent}out", *map(self._operand, jaxpr.outvars)])

    def _equation(self, step: Any, indent: str) -> Iterator[str]:
        plain, nested = self._parameters(step.params)
        operands = " ".join(map(self._operand, step.invars))
        results = " ".join(map(self._declared, step.outvars)) or "_"
        yield f"{indent}{results} = {step.primitive.name}{plain} {operands}".rstrip()
        for name, inner in nested:
            jaxpr, consts = getattr(inner, "jaxpr", inner), getattr(inner, "consts", None)
            alone = "\n".join(_Text()._body(jaxpr, consts, ""))
            if alone in self._seen and alone.count("\n") > 2:
                yield f"{indent}  {name}: as {self._seen[alone]}"
                continue
            self._seen.setdefault(alone, f"that of {results.partition(':')[0]}")
            yield f"{indent}  {name}:"
            yield from self._body(jaxpr, consts, indent + "    ")

    def _declared(self, variable: Any) -> str:
        """A new name: whether nested programs are the same object says nothing."""
        if type(variable).__name__ == "DropVar":
            return f"_:{_type(variable.aval)}"
        self._names[variable] = _name(next(self._numbers))
        return f"{self._names[variable]}:{_type(variable.aval)}"

    def _operand(self, operand: Any) -> str:
        return _literal(operand) if isinstance(operand, Literal) else self._names[operand]

    def _parameters(self, params: dict[str, Any]) -> tuple[str, list[tuple[str, Any]]]:
        """The text of parameters, and the programs among them."""
        texts, nested = [], []
        for name, value in sorted(params.items()):
            inner = value if isinstance(value, (tuple, list)) else (value,)
            if inner and all(isinstance(x, (ClosedJaxpr, Jaxpr)) for x in inner):
                several = len(inner) > 1
                nested += [(f"{name} {i}" if several else name, x) for i, x in enumerate(inner)]
            elif name not in _NOISE and not _is_usual(value) and (name, value) != ("num_consts", 0):
                texts.append(f"{name}={_value(value)}")
        return f"[{' '.join(texts)}]" if texts else "", nested


def _is_usual(value: Any) -> bool:
    """Whether it says nothing: none, false, empty, or a sharding that is not given."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_usual, value)) and not any(x is False for x in value)
    return value is None or value is False or _value(value).startswith(_NOT_SHARDED)


def _literal(operand: Literal) -> str:
    value = operand.val
    text = _array(value) if np.ndim(value) else repr(np.asarray(value).item())  # JAX has its own kinds of numbers
    return f"{text}:{_type(operand.aval)}"


def _array(value: Any) -> str:
    """The elements of few, or a checksum that rounding does not change."""
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return f"key {_array(jax.random.key_data(value))}"
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        array = array.astype(np.float32)
    if array.dtype.kind in "fc":
        array = np.round(array, 4) + 0.0
    if array.size <= _SMALL:
        return re.sub(r"\d+\.\d{4,}", lambda found: f"{float(found[0]):.4f}", str(array.tolist())).replace(" ", "")
    return f"{array.dtype}{list(array.shape)}:{_checksum(np.ascontiguousarray(array).tobytes())}".replace(" ", "")


def _value(value: Any) -> str:
    if isinstance(value, (np.ndarray, jax.Array)):
        return _array(value)
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return f"({','.join(map(_value, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{{{','.join(sorted(map(_value, value)))}}}"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_value(x)}' for key, x in value.items())}}}"
    if isinstance(value, (Mesh, AbstractMesh)):
        return _value(dict(value.shape))
    if isinstance(value, Callable) and not isinstance(value, type):
        return getattr(value, "__name__", type(value).__name__)
    if isinstance(value, type) or type(value).__name__ == "dtype":
        return getattr(value, "__name__", None) or str(value)
    text = re.sub(r"np\.\w+\((-?\d+)\)", r"\1", str(value))
    text = re.sub(r"( at)? 0x[0-9a-f]+|\w+DimensionNumbers|GatherScatterMode\.|\w+=\(\),?", "", text)
    return "".join(text.split()).replace(",)", ")")
