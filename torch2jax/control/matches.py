"""The pass before the first: `match` statements whose patterns are values become `if` statements.

A pattern of Python's compares by itself: what data decide would be compared by identity, or asked for a bool. So
``case 1 | 2``, ``case None``, ``case Color.RED``, ``case x if x > 0`` and ``case _`` become conditions. A statement
with a pattern that takes its subject apart, by a class, a sequence or a mapping, stays Python's; what it must not
compare, `Operators.matched` refuses.
"""

import ast
import itertools

from .exits import FUNCTIONS, assign, load

_SUBJECT = "_t2j_subject_"


def without_matches(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Statements of a function; those of functions in it stay as they are."""
    lowering, found = _Lowering(), []
    for statement in statements:
        new = lowering.visit(statement)
        found += new if isinstance(new, list) else [new]
    return found


def compares(cases: list[ast.match_case], *kinds: type[ast.pattern]) -> bool:
    """True if some cases have patterns of some kinds."""
    return any(isinstance(x, kinds) for case in cases for x in ast.walk(case.pattern))


class _Lowering(ast.NodeTransformer):
    def __init__(self):
        self._count = itertools.count(1)

    def visit(self, node: ast.AST) -> object:
        return node if isinstance(node, FUNCTIONS) else super().visit(node)

    def visit_Match(self, node: ast.Match) -> object:
        self.generic_visit(node)
        if not all(_is_condition(case) for case in node.cases):
            return node
        subject = f"{_SUBJECT}{next(self._count)}"
        rest: list[ast.stmt] = []
        for case in reversed(node.cases):
            rest = _conditional(case, subject, rest)
        begin: list[ast.stmt] = [assign(subject, node.subject)]
        return [ast.copy_location(x, node) for x in (*begin, *rest)]


def _is_condition(case: ast.match_case) -> bool:
    pattern = case.pattern
    if isinstance(pattern, ast.MatchAs) and pattern.pattern is not None:
        return case.guard is None and _is_test(pattern.pattern)  # else the guard sees the name
    return isinstance(pattern, ast.MatchAs) or _is_test(pattern)


def _is_test(pattern: ast.pattern) -> bool:
    if isinstance(pattern, ast.MatchOr):
        return all(map(_is_test, pattern.patterns))
    return isinstance(pattern, (ast.MatchValue, ast.MatchSingleton))


def _conditional(case: ast.match_case, subject: str, rest: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a case, and of those after it."""
    pattern, test, begin = case.pattern, case.guard, list[ast.stmt]()
    if isinstance(pattern, ast.MatchAs):
        begin = [assign(pattern.name, load(subject))] if pattern.name is not None else []
        pattern = pattern.pattern
    if pattern is not None:
        matches = _test(pattern, subject)
        test = matches if test is None else ast.BoolOp(ast.And(), [matches, test])
        if begin:  # a name is bound where the pattern matches
            return _located([ast.If(matches, [*begin, *case.body], rest)], case)
    return _located([*begin, *(case.body if test is None else [ast.If(test, case.body, rest)])], case)


def _located(statements: list[ast.stmt], case: ast.match_case) -> list[ast.stmt]:
    return [x if hasattr(x, "lineno") else ast.copy_location(x, case.pattern) for x in statements]


def _test(pattern: ast.pattern, subject: str) -> ast.expr:
    if isinstance(pattern, ast.MatchOr):
        new: ast.expr = ast.BoolOp(ast.Or(), [_test(x, subject) for x in pattern.patterns])
    elif isinstance(pattern, ast.MatchSingleton):
        new = ast.Compare(load(subject), [ast.Is()], [ast.Constant(pattern.value)])
    else:
        assert isinstance(pattern, ast.MatchValue)
        new = ast.Compare(load(subject), [ast.Eq()], [pattern.value])
    return ast.copy_location(new, pattern)
