"""The first passes: `match` statements become `if` statements, and exits leave conditions and loops.

An exit sets a flag (`return`, `break` and `continue` inside of conditions and loops), and what follows is guarded by
it. Where one side of a condition ends for sure, as in ``if c: return a``, the rest of the block moves into the other
side: then no flag is asked again.

Functions that yield keep their exits. A condition with an exit in them stays Python's, and so must be known.

`match` comes before that. A pattern of Python's compares by itself: what data decide would be compared by identity, or
asked for a bool. So ``case 1 | 2``, ``case None``, ``case Color.RED``, ``case x if x > 0`` and ``case _`` become
conditions. A statement with a pattern that takes its subject apart, by a class, a sequence or a mapping, stays
Python's; what it must not compare, `Operators.matched` refuses.
"""

import ast
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
LOOPS = (ast.For, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
YIELDS = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)
EXITS = (ast.Return, ast.Break, ast.Continue)

OPERATORS = "__t2j_operators__"
"""The constant in whose place the compiled code has the operators."""
TEMPORARY = "_t2j_tmp_"
"""Begins the names that belong to one function of the converted code; other names of ours are shared with its sides."""


def contains(nodes: Iterable[ast.AST], kinds: type | tuple[type, ...]) -> bool:
    """True if a node of these kinds is among some nodes or below them, apart from inner functions."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if isinstance(node, kinds):
            return True
        if not isinstance(node, FUNCTIONS):
            pending.extend(ast.iter_child_nodes(node))
    return False


def load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def store(name: str) -> ast.Name:
    return ast.Name(name, ast.Store())


def assign(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([store(name)], value)


def operator(name: str, *args: ast.expr) -> ast.Call:
    """A call of an operator."""
    return ast.Call(ast.Attribute(ast.Constant(OPERATORS), name, ast.Load()), list(args), [])


class _Block(NamedTuple):
    statements: list[ast.stmt]
    always: bool
    """Whether it is always left by an exit."""
    flags: set[str]
    """The flags that its exits may set."""


class _LoopFlags(NamedTuple):
    broken: str
    continued: str


def without_exits(node: ast.FunctionDef) -> list[ast.stmt]:
    """The statements of a function, with one `return` at the end where it had others inside of statements.

    Loops have the flags that end them as an attribute `flags`.
    """
    inner = [x for x in node.body if not isinstance(x, (ast.Return, *FUNCTIONS))]
    if not contains(inner, EXITS) or contains(node.body, YIELDS):
        return node.body
    return _Exits().function(node.body)


RESULT = "_t2j_result"
"""The variable with what a function returns, once it is known."""


class _Exits:
    """The exits of one function."""

    def __init__(self):
        self._count = itertools.count(1)
        self._returned, self._result = "_t2j_returned", RESULT

    def function(self, body: list[ast.stmt]) -> list[ast.stmt]:
        block = self.block([*body, ast.Return(ast.Constant(None))], None)
        begin = [assign(self._returned, ast.Constant(False)), assign(self._result, operator("undefined"))]
        end = ast.Return(operator("returned", load(self._result)))
        return [*begin, *block.statements, ast.copy_location(end, body[-1])]

    def block(self, statements: list[ast.stmt], loop: _LoopFlags | None) -> _Block:
        out: list[ast.stmt] = []
        flags: set[str] = set()
        for position, s in enumerate(statements):
            rest = statements[position + 1 :]
            if isinstance(s, ast.Return):
                sets = [assign(self._result, s.value or ast.Constant(None)), assign(self._returned, ast.Constant(True))]
                out += [ast.copy_location(x, s) for x in sets]
                return _Block(out, True, flags | {self._returned})
            if isinstance(s, (ast.Break, ast.Continue)):
                assert loop is not None
                flag = loop.broken if isinstance(s, ast.Break) else loop.continued
                out.append(ast.copy_location(assign(flag, ast.Constant(True)), s))
                return _Block(out, True, flags | {flag})
            if isinstance(s, ast.Raise):
                return _Block([*out, s], True, flags)
            if isinstance(s, FUNCTIONS) or not contains([s], EXITS):
                out.append(s)
                continue
            if isinstance(s, ast.If) and rest:
                s, rest = _with_rest(s, rest)
            found = self.statement(s, loop)
            out += found.statements
            if found.always or not rest:
                return _Block(out, found.always, flags | found.flags)
            more = self.block(rest, loop)
            if found.flags:
                out.append(ast.copy_location(ast.If(_none_of(found.flags), more.statements, []), rest[0]))
                return _Block(out, more.always, flags | found.flags | more.flags)
            return _Block([*out, *more.statements], more.always, flags | more.flags)
        return _Block(out, False, flags)

    def statement(self, s: ast.stmt, loop: _LoopFlags | None) -> _Block:
        """A statement with exits inside of it."""
        if isinstance(s, ast.If):
            yes, no = self.block(s.body, loop), self.block(s.orelse, loop)
            new = ast.If(s.test, yes.statements or [ast.Pass()], no.statements)
            return _Block([ast.copy_location(new, s)], yes.always and no.always, yes.flags | no.flags)
        if isinstance(s, LOOPS):
            return self._loop(s, loop)
        if isinstance(s, ast.With):
            body = self.block(s.body, loop)  # whose exception the context may end: it need not always be left
            return _Block([ast.copy_location(ast.With(s.items, body.statements, None), s)], False, body.flags)
        if isinstance(s, (ast.Try, ast.TryStar)):
            return self._try(s, loop)
        if isinstance(s, ast.Match):
            cases = [self.block(case.body, loop) for case in s.cases]
            new = [ast.match_case(x.pattern, x.guard, y.statements) for x, y in zip(s.cases, cases, strict=True)]
            return _Block(
                [ast.copy_location(ast.Match(s.subject, new), s)], False, set().union(*(x.flags for x in cases))
            )
        raise AssertionError(f"an exit in {type(s).__name__}")

    def _loop(self, s: ast.For | ast.While, loop: _LoopFlags | None) -> _Block:
        number = next(self._count)
        own = _LoopFlags(f"_t2j_broken{number}", f"_t2j_continued{number}")
        block = self.block(s.body, own)
        body, ending = block.statements, block.flags - {own.continued}
        if own.continued in block.flags:
            body = [ast.copy_location(assign(own.continued, ast.Constant(False)), s), *body]
        new: Any = (
            ast.While(s.test, body, []) if isinstance(s, ast.While) else ast.For(s.target, s.iter, body, [], None)
        )
        ast.copy_location(new, s).flags = tuple(sorted(ending))
        out: list[ast.stmt] = (
            [ast.copy_location(assign(own.broken, ast.Constant(False)), s)] if own.broken in ending else []
        )
        out.append(new)
        left = ending - {own.broken}
        is_endless = isinstance(s, ast.While) and isinstance(s.test, ast.Constant) and bool(s.test.value)
        if is_endless and own.broken not in ending:  # only a `return` leaves it
            return _Block(out, True, left)
        if s.orelse:
            other = self.block(s.orelse, loop)
            out += (
                [ast.copy_location(ast.If(_none_of(ending), other.statements, []), s)] if ending else other.statements
            )
            left |= other.flags
        return _Block(out, False, left)

    def _try(self, s: ast.Try | ast.TryStar, loop: _LoopFlags | None) -> _Block:
        body, other, final = (self.block(x, loop) for x in (s.body, s.orelse, s.finalbody))
        handlers, always, flags = [], body.always, body.flags | other.flags | final.flags
        for handler in s.handlers:
            inner = self.block(handler.body, loop)
            # An exit of the body is none that a `finally`, or the end of a `with`, has raised in.
            unset = [ast.copy_location(assign(x, ast.Constant(False)), handler) for x in sorted(body.flags)]
            statements = [*unset, *inner.statements]
            handlers.append(ast.copy_location(ast.ExceptHandler(handler.type, handler.name, statements), handler))
            always, flags = always and inner.always, flags | inner.flags
        orelse: list[ast.stmt] = other.statements
        if orelse and body.flags:
            orelse = [ast.copy_location(ast.If(_none_of(body.flags), orelse, []), s)]
        new = type(s)(body.statements, handlers, orelse, final.statements)
        return _Block([ast.copy_location(new, s)], always or final.always, flags)


def _with_rest(s: ast.If, rest: list[ast.stmt]) -> tuple[ast.If, list[ast.stmt]]:
    """The condition with what follows on it in the side that goes on, if the other one always ends."""
    ends, other_ends = _always_ends(s.body), _always_ends(s.orelse)
    if ends and not other_ends:
        return ast.copy_location(ast.If(s.test, s.body, [*s.orelse, *rest]), s), []
    if other_ends and not ends:
        return ast.copy_location(ast.If(s.test, [*s.body, *rest], s.orelse), s), []
    return s, rest


def _always_ends(statements: list[ast.stmt]) -> bool:
    """True if a block is always left by an exit or an exception, as far as that is plain to see."""
    return any(
        isinstance(s, (*EXITS, ast.Raise))
        or (isinstance(s, ast.If) and _always_ends(s.body) and _always_ends(s.orelse))
        for s in statements
    )


def _none_of(flags: Iterable[str]) -> ast.Call:
    return operator("none_of", *map(load, sorted(flags)))


def stored_names(nodes: Iterable[ast.AST]) -> set[str]:
    """The variables that statements set, delete or define, apart from those of inner functions and our temporaries."""
    return {x for x in _stored(list(nodes)) if not x.startswith(TEMPORARY)}


def _stored(pending: list[ast.AST]) -> Iterator[str]:
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
            pending.extend(node.decorator_list)
            continue
        elif isinstance(node, ast.Lambda):
            continue
        elif isinstance(node, COMPREHENSIONS):
            yield from (x.target.id for x in ast.walk(node) if isinstance(x, ast.NamedExpr))
            continue
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((x.asname or x.name).partition(".")[0] for x in node.names)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        pending.extend(ast.iter_child_nodes(node))


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
