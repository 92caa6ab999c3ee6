"""The syntax tree of a function, from its file.

A file is parsed once, whole, so that each node has the line and column that the file has: tracebacks and debuggers
show the user's own lines.
"""

import ast
import linecache
from types import CodeType
from typing import NamedTuple

from ..runtime.caches import remembered


class Unconvertible(Exception):
    """Code that is not converted: it has no source, or what it does cannot be read from that."""


class Definition(NamedTuple):
    """A function's node, and the name of the class around it, by which its private names are mangled."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    class_name: str | None


class _File(NamedTuple):
    functions: dict[tuple[int, str], Definition]
    """By their first line, decorators included, and name."""
    lambdas: list[Definition]


def definition_of(code: CodeType) -> Definition:
    """The definition that a code object was compiled from.

    Raises:
        Unconvertible: it is not in its file, or the file has changed since.
    """
    file = _parsed(code.co_filename)
    if code.co_name == "<lambda>":
        return _lambda(code, file.lambdas)
    found = file.functions.get((code.co_firstlineno, code.co_name))
    if found is None or not _may_be(found.node, code):
        raise Unconvertible(f"{code.co_name} is not at {code.co_filename}:{code.co_firstlineno}")
    return found


@remembered(256)
def _parsed(filename: str) -> _File:
    text = "".join(linecache.getlines(filename))
    if not text:
        raise Unconvertible(f"{filename} has no source")
    file = _File({}, [])

    def visit(node: ast.AST, class_name: str | None) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                file.functions[first, child.name] = Definition(child, class_name)
            elif isinstance(child, ast.Lambda):
                file.lambdas.append(Definition(child, class_name))
            visit(child, child.name if isinstance(child, ast.ClassDef) else class_name)

    try:
        visit(ast.parse(text), None)
    except SyntaxError as error:
        raise Unconvertible(f"{filename} cannot be parsed: {error}") from error
    return file


def _may_be(node: ast.AST, code: CodeType) -> bool:
    """True if a function's parameters are a node's: else the file has been edited since it was imported."""
    args: ast.arguments = node.args  # pyright: ignore[reportAttributeAccessIssue]
    names = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    names += [arg.arg for arg in (args.vararg, args.kwarg) if arg is not None]
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args and **kwargs
    return list(code.co_varnames[:count]) == names


def _lambda(code: CodeType, lambdas: list[Definition]) -> Definition:
    """The innermost lambda whose body has all that the code is from."""
    spots = [x for x in code.co_positions() if None not in x and (x[0], x[2]) < (x[1], x[3])]

    def holds(node: ast.AST) -> bool:
        body: ast.expr = node.body  # pyright: ignore[reportAttributeAccessIssue]
        begin, end = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
        return all(begin <= (first, at) and (last, until) <= end for first, last, at, until in spots)  # pyright: ignore[reportOperatorIssue]

    found = [
        x
        for x in lambdas
        if x.node.lineno <= code.co_firstlineno <= (x.node.end_lineno or 0) and _may_be(x.node, code) and holds(x.node)
    ]
    if not found or not spots:
        raise Unconvertible(f"a lambda is not at {code.co_filename}:{code.co_firstlineno}")
    return max(found, key=lambda x: (x.node.body.lineno, x.node.body.col_offset))  # pyright: ignore[reportAttributeAccessIssue]
