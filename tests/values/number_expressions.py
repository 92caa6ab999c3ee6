"""A table of expressions over numbers that come from data, and the functions that compute them.

An expression uses some of these names, which a function gives it first:

f, g: floats, by ``.item()`` and ``float()``; n, i: integers, by ``.item()`` and ``int()``; k: the length of a
selection; c: the counter of a loop that data end; b: a bool; x: the tensor that all of them are of.
"""

import importlib.util
import re
from pathlib import Path

import numpy as np
import torch

NAMES = {
    "f": "f = (x.sum() / 4).item()",
    "g": "g = float(x[0])",
    "n": "n = x.long().sum().item()",
    "i": "i = int(x.long().abs().max())",
    "k": "k = len(x[x > 0])",
    "c": "c, y = 0, x.abs().sum()\nwhile y > 1:\n    y, c = y / 2, c + 1",
    "b": "b = (x.sum() > 0).item()",
}

ARITHMETIC = """
n + 1
1 - n
n + k
i * 3
n * i
-n
+n
abs(n)
~n
n / 4
i / (i + 1)
n // 2
n // -3
7 // (i + 1)
n % 3
n % -3
-7 % (i + 1)
n % 2.5
i << 2
i >> 1
n >> 1
n & 3
i | 8
n ^ 5
n ** 2
n ** 0
n ** 0.5 if n > 0 else 0.0
(i + 1) ** -1
n ** -2 if n != 0 else 0.0
2 ** k
2 ** i
2 ** -i
2.0 ** i
2.0 ** n
f ** 2
f ** n
abs(f) ** 0.5
(-8.0) ** 3 + f
f + 1
f - n
f * k
f / 2
1 / (abs(f) + 1)
f // 1
f // -0.5
f % 1
f % -0.75
-f
abs(f)
f * True
b + 1
b * 3
-b
b / 2
~k
True + k
k // 2 + k % 2
c + 1
c * c
c ** 2
c / 3
10 - c
c % 2
c // 2
n + 2 ** 31 - 2 ** 31
n % 2 ** 31
f * 1e30
f * 1e-30
n + 1j
f * 2j
"""

COMPARISONS = """
n > 0
n == 2
n != k
0 < n < 5
f > g
f == f
f >= 0 and n > 0
n or 7
n and 7
f or 1.5
not n
not f
not b
b and n > 1
b or n > 1
b & (n > 1)
b | (n > 1)
b ^ (n > 1)
b == True
b is True
b is not False
n is None
n is not None
f is None
n in (1, 2, 3)
n not in [0, 4]
f in (0.5, 1.0)
c > 2
k == len(x)
n if b else k
f if n > 0 else -f
1 if n > 0 else 2
n < 2.5
n == 1.0
f < n
n > 2 ** 31
n < 2 ** 40
f < 10 ** 20
b > 0
b < n
"""

FUNCTIONS = """
min(n, 2)
max(n, 0)
min(n, k, 3)
max(f, g)
min(f, 1)
max(n, 0.5)
min(float("nan"), f)
min(f, float("nan"))
max(float("nan"), f)
max(f, float("nan"))
min([n, i, 1])
max((f, g, 0.25))
max(n, i, key=abs)
max([], default=n)
sum([n, i, 1])
sum([f, g], 0.5)
sum((n, k))
sum(n for _ in range(3))
round(f)
round(f, 1)
round(n)
round(n, -1)
round(f * 10)
round(f + 0.5)
int(f)
int(n)
int(-g)
int(b)
int(f * 100)
float(n)
float(f)
float(b)
float(k)
bool(n)
bool(f)
bool(c)
complex(n)
divmod(n, 3)
divmod(f, 0.5)
divmod(n, -4)
divmod(7, i + 1)
pow(n, 2)
pow(n, 2, 5)
pow(f, 2)
pow(2, k)
abs(n - i)
all([n > 0, f > 0])
any([n > 0, f > 0])
len(range(i))
len(range(k))
sum(range(k))
[j * n for j in range(3)][2]
list(range(k))
str(n)
repr(f)
f"{n}"
f"{f:.2f}"
"%d" % n
"{}".format(n)
str(n) == "3"
hash(n)
hex(i)
bin(i)
chr(65 + i)
k & 2 ** 40 - 1
(n << 3) >> 40
n >> 31
n > 2.5
n >= -3.5
n == 3.0
n != 2.5
n < -0.5
n <= 8.5
n / 10 < f
n * 0.1 + g
n & 2 ** 40 - 1
n | 2 ** 31
i ^ 2 ** 64 - 1
n.bit_length()
i.bit_count()
f.is_integer()
f.as_integer_ratio()
n.real
f.imag
n.conjugate()
n.numerator
f.hex()
n.__add__(1)
n.__index__()
int.__add__(n, 1)
float.__mul__(f, 2.0)
int.from_bytes(b"a", "big") + n
format(f, ".1f")
sorted([n, 1, k])
"""

MATH = """
math.sqrt(abs(f))
math.exp(f)
math.log(abs(f) + 1)
math.log(i + 1, 2)
math.log2(i + 1)
math.log10(i + 1)
math.sin(f)
math.cos(n)
math.tanh(f)
math.atan2(f, g)
math.pow(2, f)
math.pow(n, 2)
math.floor(f)
math.ceil(f)
math.trunc(f)
math.floor(n)
math.ceil(f * 10)
math.fabs(n)
math.isnan(f)
math.isinf(f)
math.isfinite(f)
math.hypot(f, g)
math.hypot(f, g, 3)
math.hypot(f)
math.degrees(f)
math.radians(f)
math.copysign(1, f)
math.fmod(f, 0.75)
math.isclose(f, g)
math.gcd(i, 6)
math.factorial(k)
math.comb(5, k)
math.isqrt(i)
math.prod([n, k])
math.fsum([f, g])
math.modf(f)
math.frexp(f)
math.ldexp(f, 2)
math.dist([f], [g])
math.sqrt(i) if i > 0 else 0.0
math.inf if n > 100 else f
math.pi * f
math.e ** f
math.lcm(i, 4)
math.perm(5, k)
math.remainder(f, 0.75)
math.cbrt(f)
math.exp2(f)
math.gamma(abs(f) + 1)
math.erf(f)
np.sqrt(abs(f))
np.floor(f)
np.float32(f)
np.int64(n)
np.array(n)
operator.add(n, 1)
operator.index(i)
"""

TENSORS = """
x * n
x + f
n - x
x ** 2 * k
x[i % 3]
x[:k]
x[k:]
x[min(k, 1):]
x[k - 1]
x[-1 - k % 2]
x.roll(n)
x[torch.tensor([0, k % 3])]
torch.tensor(n)
torch.tensor(f)
torch.tensor(b)
torch.tensor([n, i])
torch.tensor([f, 1.0])
torch.tensor(n, dtype=torch.float32)
torch.as_tensor(f)
torch.full((2,), n)
torch.full((2,), f)
torch.full_like(x, n)
torch.zeros(3).fill_(f)
torch.where(x > f, x, n)
x.clamp(min=f)
x.clamp(max=n)
torch.arange(3) + n
torch.arange(3) * f
(x.long() + n).dtype == torch.int64
(x.long() * f).dtype == torch.float32
(x > n).sum()
torch.zeros(k)
torch.ones(k).sum()
torch.arange(k).sum()
torch.linspace(0, f, 3)
x.new_full((2,), n)
torch.scalar_tensor(f)
x.add(x, alpha=n)
torch.lerp(x, x * 2, f)
x.div(i + 1, rounding_mode="floor")
torch.pow(x, k)
torch.pow(2, x.long() * 0 + k)
torch.eq(x, n)
x.eq(f).any()
torch.maximum(x, torch.tensor(n))
torch.stack([torch.tensor(f), x[0]])
x.repeat(2)[i % 6]
"""

TYPES = """
isinstance(n, torch.Tensor)
isinstance(f, torch.Tensor)
isinstance(k, torch.Tensor)
isinstance(c, torch.Tensor)
isinstance(b, torch.Tensor)
isinstance(g, torch.Tensor)
isinstance(n, int)
isinstance(f, float)
isinstance(b, bool)
isinstance(b, int)
isinstance(n, (float, torch.Tensor))
isinstance(n, (int, float))
isinstance(n, int | float)
isinstance(n, numbers.Number)
isinstance(f, numbers.Real)
isinstance(n, numbers.Integral)
isinstance(c, int)
isinstance(c + 1.5, float)
isinstance(n / 2, float)
isinstance(n // 2, int)
isinstance(n + f, float)
isinstance(x[0], torch.Tensor)
issubclass(type(n), torch.Tensor)
issubclass(type(n), int)
torch.is_tensor(n)
torch.is_tensor(c)
torch.is_tensor(x)
type(n) is int
type(f) is float
type(k) is int
type(c) is int
type(b) is bool
type(n) == int
type(n) in (int, float)
type(n) is torch.Tensor
type(n).__name__ == "int"
n.__class__ is int
f.__class__.__name__ == "float"
hasattr(n, "shape")
hasattr(f, "dtype")
hasattr(k, "item")
hasattr(c, "device")
hasattr(n, "bit_length")
hasattr(n, "detach")
hasattr(n, "__len__")
hasattr(n, "__iter__")
hasattr(n, "__add__")
hasattr(n, "__array__")
getattr(n, "dtype", None) is None
getattr(n, "shape", 3)
callable(n)
callable(getattr(n, "item", None))
torch.is_floating_point(x) and not torch.is_tensor(f)
np.isscalar(n)
(n.item() if isinstance(n, torch.Tensor) else n) + 1
n if torch.is_tensor(n) else torch.tensor(n)
f.item() if hasattr(f, "item") else f
"""

BLOCKS = """
try:
    r = 1 / n
except ZeroDivisionError:
    r = -1.0
---
try:
    r = 7 // n
except ZeroDivisionError:
    r = -1
---
try:
    r = f % k
except ZeroDivisionError:
    r = -1.0
---
try:
    r = math.log(f)
except ValueError:
    r = -1.0
---
try:
    r = math.sqrt(f)
except ValueError:
    r = -1.0
---
try:
    r = len(n)
except TypeError:
    r = -1
---
try:
    r = n[0]
except TypeError:
    r = -1
---
try:
    r = n.shape
except AttributeError:
    r = -1
---
try:
    r = n.item()
except AttributeError:
    r = -1
---
try:
    r = [v for v in n]
except TypeError:
    r = -1
---
r = n
r += 1
r *= 2
---
r = n
r //= 2
r -= 1
---
r = f
r **= 2
r /= 3
---
r = i
r <<= 1
r |= 1
---
r = 0
for j in range(k):
    r += j * n
---
r = 0
for j in range(i % 4):
    r += j
---
r = 1
for j in range(1, k + 1):
    r *= j
---
r = n
for _ in range(3):
    r = r * 2 + 1
---
r = 0
while r * r < i:
    r += 1
---
r, s = i, 6
while s:
    r, s = s, r % s
---
r = {1: 2, 3: 4}.get(n, 5)
---
r = [10, 20, 30, 40][k]
---
r = ord("abcd"[k])
---
r = [1, 2, 3][:k]
---
r = len({n, 1})
---
match n:
    case 0:
        r = 1
    case _:
        r = 2
---
match n:
    case int():
        r = 1
    case _:
        r = 2
---
match n:
    case torch.Tensor():
        r = 1
    case _:
        r = 2
---
print(n)
r = n
---
assert n < 1000, f"{n} is too large"
r = n
---
if n > 1000:
    raise ValueError(f"{n} is too large")
r = n
---
r = (lambda v: v + 1)(n)
---
r = functools.reduce(lambda p, q: p * q, [n, k, 2])
---
r = list(map(float, [n, k]))[0]
---
r = next(v for v in [n, 1] if v == 1)
---
r = n if not isinstance(n, torch.Tensor) else n.tolist()
---
r, s = divmod(i, 4)
r = r + s
---
r = dict(a=n)["a"] + 1
---
r = [n, k]
r[0] += 1
r = r[0]
"""

REFUSED = {
    "the integer [0-9]+, .* beside a number that data decide, which has 32 bits": (
        *("n + 2 ** 31 - 2 ** 31", "n % 2 ** 31", "n & 2 ** 40 - 1", "n | 2 ** 31", "i ^ 2 ** 64 - 1"),
    ),
    "data decide whether an exponent is negative": ("2 ** i", "2 ** -i"),
    "a complex number of a traced one|complex": ("n + 1j", "f * 2j", "complex(n)"),
    "jax.debug.print": (
        *("str(n)", "repr(f)", 'f"{n}"', 'f"{f:.2f}"', '"%d" % n', '"{}".format(n)', 'str(n) == "3"'),
        *('format(f, ".1f")', "print(n)\nr = n"),
    ),
    "a number looked up in a dictionary or set": ("hash(n)", "r = len({n, 1})"),
    "a tensor used as an index": ("r = [1, 2, 3][:k]", "operator.index(i)"),
    r"(hex|bin|chr)\(\) of a traced number": ("hex(i)", "bin(i)", "chr(65 + i)"),
    r"(int|float)\.\w+\(\) of a traced number": (
        *("n.bit_length()", "i.bit_count()", "f.as_integer_ratio()", "f.hex()", "n.__index__()", "int.__add__(n, 1)"),
        "float.__mul__(f, 2.0)",
    ),
    r"math\.\w+\(\) of a traced number": (
        *("math.factorial(k)", "math.comb(5, k)", "math.perm(5, k)", "math.isqrt(i)", "math.lcm(i, 4)"),
        *("math.modf(f)", "math.frexp(f)", "math.ldexp(f, 2)", "math.remainder(f, 0.75)", "math.cbrt(f)"),
        *("math.gamma(abs(f) + 1)", "math.fsum([f, g])", "math.dist([f], [g])"),
    ),
    r"round\(number, digits\)": ("round(n, -1)",),
    "a number matched by the class of tensors": (
        "match n:\n    case torch.Tensor():\n        r = 1\n    case _:\n        r = 2",
    ),
    "__array__|array": ("np.float32(f)", "np.int64(n)", "np.array(n)"),
    "differ in|paths through it": ("list(range(k))",),
    r"Tensor\.item\(\)": ("x.roll(n)",),
}
"""Expressions that are refused, by what the error says."""
REFUSED_IN_LOOPS = (
    *("sum(range(k))", "x[k:]", "x[min(k, 1):]", "r = next(v for v in [n, 1] if v == 1)"),
    'r = ord("abcd"[k])',
    *(block for block in BLOCKS.strip().split("\n---\n") if "ZeroDivisionError:" in block),
    *(block for block in BLOCKS.strip().split("\n---\n") if "ValueError:" in block or "case 0" in block),
)
"""Also refused where a loop that ends on data has to choose between two ways to go on that cannot be one."""
REAL = ("min(f, 1)", "max(n, 0.5)")
"""Data decide whether these are integers or floats: they are floats."""

SETTINGS = ("alone", "condition", "loop")
INPUTS = ([1.5, -2.25, 4.75], [-3.5, 0.25, -1.0], [0.5, 0.25, 0.125], [3.0, 4.0, 2.0])
_HEAD = "import functools\nimport math\nimport numbers\nimport operator\nimport numpy as np\nimport torch\n\n\n"


def expressions() -> dict[str, str]:
    """The table: blocks of code that set ``r``, by what the table has."""
    found = {}
    for part in (ARITHMETIC, COMPARISONS, FUNCTIONS, MATH, TENSORS, TYPES):
        for line in part.strip().split("\n"):
            found[line] = f"r = {line}"
    for block in BLOCKS.strip().split("\n---\n"):
        found[block] = block
    return found


def _indented(text: str, depth: int) -> str:
    return "".join("    " * depth + line + "\n" for line in text.split("\n"))


def source_of(block: str, setting: str, name: str, other: str) -> str:
    """A function that computes an expression.

    Args:
        setting: one of `SETTINGS`.
        other: what it gives where the block is not reached.
    """
    used = [given for given in NAMES if re.search(rf"(?<![\w.\"']){given}\b(?!['\"])", block)]
    given = "\n".join(NAMES[x] for x in used)
    head = f"def {name}(x):\n"
    if setting == "alone":
        return head + _indented(f"{given}\n{block}\nreturn r", 1)
    if setting == "condition":
        inner = _indented(block, 2)
        return head + _indented(given, 1) + f"    if x[0] > 0:\n{inner}    else:\n        r = {other}\n    return r\n"
    inner = _indented(f"{given}\n{block}\nm += 1\nx = x / 2", 2)
    return head + f"    r, m = {other}, 0\n    while x.abs().sum() > 1:\n{inner}    return r, m\n"


def module_of(sources: list[str], path: Path) -> object:
    """A module with functions, in a file: what is converted is read there."""
    path.write_text(_HEAD + "\n\n".join(sources))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)  # pyright: ignore[reportArgumentType]
    spec.loader.exec_module(module)  # pyright: ignore[reportOptionalMemberAccess]
    return module


def other_of(value: object) -> str:
    """What stands for a value where it is not computed, as code."""
    if isinstance(value, torch.Tensor):
        return f"torch.zeros({tuple(value.shape)}, dtype={value.dtype})"
    if isinstance(value, (tuple, list)):
        inner = ", ".join(map(other_of, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)"
    if isinstance(value, np.generic):
        value = value.item()
    kinds = {bool: "False", int: "0", float: "0.0", complex: "0j", str: "''"}
    return kinds.get(type(value), "0")
