"""The second pass: what may ask or write becomes a call of an operator (`operators.py`), and the compiled function.

Sides of conditions and bodies of loops become inner functions. They assign to the function's variables by `nonlocal`,
and the operator reads these through the cells of the inner functions: no state is passed, and a variable that is not
set is an empty cell. The operators are a constant of the code object, so that no name of the user's is taken.
"""

import ast
import copy
import itertools
import sys
import types
from collections.abc import Iterable, Sequence
from typing import Any

from ..runtime.caches import Cache
from .exits import (
    EXITS,
    FUNCTIONS,
    OPERATORS,
    TEMPORARY,
    YIELDS,
    assign,
    compares,
    contains,
    load,
    operator,
    store,
    stored_names,
    without_exits,
    without_matches,
)
from .source import Unconvertible, definition_of

_READ_THEIR_CALLER = frozenset(("locals", "eval", "exec", "__import__"))
_READ_THEIR_CALLER_ALONE = frozenset(("vars", "dir"))  # without an argument
_KEPT_CALLS = frozenset(("super", "globals"))


_UNSET = {"NameError", "UnboundLocalError"}


class _Converter(ast.NodeTransformer):
    """Converts one function and those inside of it.

    Args:
        class_name: of the class around it.
    """

    def __init__(self, class_name: str | None):
        self._class = class_name
        self._count = itertools.count(1)
        self._depth = 0
        """How many sides and bodies of its function the code is in."""
        self._globals: set[str] = set()
        self._nonlocals: set[str] = set()
        self._first: str | None = None
        """The first parameter, of which a ``super()`` without arguments is."""

    # Functions.

    def function(self, node: ast.FunctionDef, is_top_level: bool = False) -> ast.FunctionDef:
        """The function; the outermost one without decorators and defaults, which the function object has."""
        decorators = [] if is_top_level else [self.visit(x) for x in node.decorator_list]
        args = self._arguments(node.args, is_top_level)
        saved = self._enter_scope(node.args, node.body)
        parameters = {x.arg for x in ast.walk(node.args) if isinstance(x, ast.arg)}
        node.body = without_matches(node.body)
        lowered = without_exits(node)
        local = sorted(stored_names(lowered) - self._globals - self._nonlocals - parameters)
        body = self._block(lowered)
        nonlocals: list[ast.stmt] = [ast.Nonlocal(sorted(self._nonlocals))] if self._nonlocals else []
        # Assigned nowhere else than in sides, a variable would be none of this function's.
        variables: list[ast.stmt] = []
        if local:
            variables = [ast.If(ast.Constant(False), [ast.Assign([store(x) for x in local], ast.Constant(None))], [])]
        self._globals, self._nonlocals, self._first, self._depth = saved
        made: list[ast.stmt] = []
        if node.args.kwarg is not None:  # a dictionary that nobody else has
            made = [ast.copy_location(ast.Expr(operator("new", load(node.args.kwarg.arg))), node)]
        new = _function(node.name, args, [*nonlocals, *variables, *made, *body] or [ast.Pass()], decorators)
        return ast.copy_location(new, node)

    def _enter_scope(self, args: ast.arguments, body: Sequence[ast.stmt]) -> tuple:
        saved = self._globals, self._nonlocals, self._first, self._depth
        self._depth = 0
        positional = [*args.posonlyargs, *args.args]
        self._first = positional[0].arg if positional else None
        self._globals, self._nonlocals = set(), set()
        pending: list[ast.AST] = list(body)
        bound, named = set[str](), set[str]()
        while pending:
            x = pending.pop()
            if isinstance(x, ast.Global):
                self._globals |= set(x.names)
            elif isinstance(x, ast.Nonlocal):
                self._nonlocals |= set(x.names)
            elif isinstance(x, (ast.Import, ast.ImportFrom, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
                bound |= stored_names([x])
            elif isinstance(x, ast.NamedExpr):
                named.add(x.target.id)
            elif isinstance(x, (ast.FunctionDef, ast.ClassDef)):
                bound.add(x.name)
            if not isinstance(x, FUNCTIONS):
                pending.extend(ast.iter_child_nodes(x))
        unseen = ((bound | named) & self._globals) | (named & self._nonlocals)
        if unseen:
            raise Unconvertible(f"{', '.join(sorted(unseen))}, of code around it, is set by no plain assignment")
        return saved

    def _arguments(self, args: ast.arguments, is_top_level: bool) -> ast.arguments:
        """The parameters without annotations; the defaults are evaluated around the function."""
        args = copy.deepcopy(args)
        converted = (lambda _: ast.Constant(None)) if is_top_level else self.visit
        args.defaults = [converted(x) for x in args.defaults]
        args.kw_defaults = [None if x is None else converted(x) for x in args.kw_defaults]
        for x in ast.walk(args):
            if isinstance(x, ast.arg) and is_top_level:
                x.annotation = None
        return args

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST | Sequence[ast.AST]:
        made = ast.copy_location(ast.Expr(operator("new", load(node.name))), node)
        is_own = node.name not in self._globals
        return [*self._notes_of_cells([node]), self.function(node), *([made] if is_own else [])]

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST | Sequence[ast.AST]:
        return node

    def lambda_(self, node: ast.Lambda, is_top_level: bool = False) -> ast.Lambda:
        args = self._arguments(node.args, is_top_level)
        saved = self._enter_scope(node.args, [])
        body = self.visit(node.body)
        self._globals, self._nonlocals, self._first, self._depth = saved
        return ast.copy_location(ast.Lambda(args, body), node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST | Sequence[ast.AST]:
        return self.lambda_(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST | Sequence[ast.AST]:
        node.decorator_list = [self.visit(x) for x in node.decorator_list]
        node.bases = [self.visit(x) for x in node.bases]
        around, self._class = self._class, node.name
        node.body = [self.function(x) if isinstance(x, ast.FunctionDef) else x for x in node.body]
        self._class = around
        if node.name in self._globals:
            return node
        return [node, ast.copy_location(ast.Expr(operator("new", load(node.name))), node)]

    # Statements.

    def _block(self, statements: Iterable[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for s in statements:
            new = self.visit(s)
            for x in new if isinstance(new, list) else [new]:
                if not hasattr(x, "lineno") and hasattr(s, "lineno"):
                    ast.copy_location(x, s)
                out.append(x)
        return out

    def _inner(
        self, kind: str, statements: list[ast.stmt], args: Sequence[str] = ()
    ) -> tuple[ast.FunctionDef, set[str]]:
        """Statements as an inner function, and the variables that they set."""
        names = stored_names(statements) - self._globals  # before they are hidden in inner functions
        head: list[ast.stmt] = [ast.Nonlocal(sorted(names))] if names else []
        self._depth += 1
        body = self._block(statements) or [ast.Pass()]
        self._depth -= 1
        parameters = ast.arguments([], [ast.arg(x) for x in args], None, [], [], None, [])
        return _function(f"{TEMPORARY}{kind}{next(self._count)}", parameters, [*head, *body], []), names

    def visit_Global(self, node: ast.Global) -> ast.AST | Sequence[ast.AST]:
        return ast.copy_location(ast.Pass(), node)  # its variables are set by operators

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST | Sequence[ast.AST]:
        return ast.copy_location(ast.Pass(), node)  # the function begins with it

    def visit_If(self, node: ast.If) -> ast.AST | Sequence[ast.AST]:
        test = self.visit(node.test)
        if contains([*node.body, *node.orelse], (*YIELDS, *EXITS)):
            return ast.If(operator("known", test), self._block(node.body), self._block(node.orelse))
        yes, names = self._inner("then", node.body)
        no, others = self._inner("else", node.orelse)
        call = operator("if_", test, load(yes.name), load(no.name), _constant(tuple(sorted(names | others))))
        return [ast.copy_location(x, node) for x in (yes, no, ast.Expr(call))]

    def visit_While(self, node: ast.While) -> ast.AST | Sequence[ast.AST]:
        if contains([node.test, *node.body], (*YIELDS, *EXITS)):
            return ast.While(operator("known", self.visit(node.test)), self._block(node.body), self._block(node.orelse))
        flags = getattr(node, "flags", ())
        test, names = self._inner("test", [ast.copy_location(ast.Return(node.test), node)])
        body, others = self._inner("body", node.body)
        every = _constant(tuple(sorted(names | others)))
        call = operator("while_", load(test.name), load(body.name), every, _constant(flags))
        return [*(ast.copy_location(x, node) for x in (test, body, ast.Expr(call))), *self._block(node.orelse)]

    def visit_For(self, node: ast.For) -> ast.AST | Sequence[ast.AST]:
        items = self.visit(node.iter)
        if contains(node.body, (*YIELDS, *EXITS)):
            target, after = self._target(node.target)
            body = [*after, *self._block(node.body)]
            return ast.For(target, operator("iterated", items), body, self._block(node.orelse), None)
        item = f"{TEMPORARY}item"
        first = ast.copy_location(ast.Assign([node.target], load(item)), node)
        body, names = self._inner("body", [first, *node.body], [item])
        flags = _constant(getattr(node, "flags", ()))
        call = operator("for_", items, load(body.name), _constant(tuple(sorted(names))), flags)
        return [*(ast.copy_location(x, node) for x in (body, ast.Expr(call))), *self._block(node.orelse)]

    def visit_Try(self, node: Any) -> ast.AST | Sequence[ast.AST]:
        body = self._block(node.body)
        if node.handlers:
            body = [ast.copy_location(ast.With([ast.withitem(operator("trying"), None)], body, None), node)]
        handlers = []
        for handler in node.handlers:
            if _UNSET & {getattr(x, "id", None) for x in ast.walk(handler.type or ast.Pass())}:
                raise Unconvertible("it catches NameError: behind a condition a variable is there that one side sets")
            kind = handler.type and self.visit(handler.type)
            handlers.append(
                ast.copy_location(ast.ExceptHandler(kind, handler.name, self._block(handler.body)), handler)
            )
        return type(node)(body, handlers, self._block(node.orelse), self._block(node.finalbody))

    visit_TryStar = visit_Try

    def visit_With(self, node: ast.With) -> ast.AST | Sequence[ast.AST]:
        body, items = self._block(node.body), []
        for item in reversed(node.items):
            target, after = (None, []) if item.optional_vars is None else self._target(item.optional_vars)
            body = [*after, *body]
            items.insert(0, ast.withitem(operator("managed", self.visit(item.context_expr)), target))
        return ast.With(items, body, None)

    def visit_Match(self, node: ast.Match) -> ast.AST | Sequence[ast.AST]:
        cases = [
            ast.match_case(x.pattern, x.guard and operator("known", self.visit(x.guard)), self._block(x.body))
            for x in node.cases
        ]
        classes = [x.cls for case in node.cases for x in ast.walk(case.pattern) if isinstance(x, ast.MatchClass)]
        kinds = [self.visit(copy.deepcopy(x)) for x in classes]
        by_value = _constant(compares(node.cases, ast.MatchValue, ast.MatchSingleton))
        by_identity = _constant(compares(node.cases, ast.MatchSingleton))
        return ast.Match(
            operator("matched", self.visit(node.subject), by_value, by_identity, *map(_thunk, kinds)), cases
        )

    def visit_Raise(self, node: ast.Raise) -> ast.AST | Sequence[ast.AST]:
        if node.exc is None:
            return node
        return ast.Raise(operator("raised", _thunk(self.visit(node.exc))), node.cause and self.visit(node.cause))

    def visit_Assert(self, node: ast.Assert) -> ast.AST | Sequence[ast.AST]:
        message = node.msg or ast.Constant(None)
        return ast.Expr(operator("assert_", self.visit(node.test), _thunk(self.visit(message))))

    def _target(self, node: ast.expr) -> tuple[Any, list[ast.stmt]]:
        """A target of names, and the statements that set what it sets, in their order, where it has others."""
        is_plain = lambda x: x.id not in self._globals | self._nonlocals
        names = [x for x in ast.walk(node) if isinstance(x, ast.Name)]
        if all(map(is_plain, names)) and not contains([node], (ast.Attribute, ast.Subscript, ast.Starred)):
            return node, []
        return self._set_in_order(node)

    def _set_in_order(self, node: ast.expr) -> tuple[Any, list[ast.stmt]]:
        if isinstance(node, ast.Starred):
            inner, after = self._set_in_order(node.value)
            new = ast.copy_location(ast.Expr(operator("new", load(inner.id))), node)  # a list that nobody else has
            return ast.Starred(inner, ast.Store()), [new, *after]
        if isinstance(node, (ast.Tuple, ast.List)):
            pairs = [self._set_in_order(x) for x in node.elts]
            return type(node)([x for x, _ in pairs], ast.Store()), [y for _, after in pairs for y in after]
        temporary = f"{TEMPORARY}value{next(self._count)}"
        after: list[ast.stmt]
        if isinstance(node, ast.Name) and node.id in self._nonlocals:
            after = [*self._notes_of_cells([node]), assign(node.id, load(temporary))]
        elif isinstance(node, ast.Name) and node.id not in self._globals:
            after = [assign(node.id, load(temporary))]
        else:
            after = [ast.Expr(self._put(node, load(temporary)))]
        return store(temporary), [ast.copy_location(x, node) for x in after]

    def _put(self, node: ast.expr, value: ast.expr) -> ast.expr:
        """The statement that sets an attribute, an item or a global to a value."""
        if isinstance(node, ast.Attribute):
            return operator("setattr", value, self.visit(node.value), ast.Constant(self._mangled(node.attr)))
        if isinstance(node, ast.Name):
            return operator("set_global", value, _globals(), ast.Constant(node.id))
        assert isinstance(node, ast.Subscript)
        return operator("setitem", value, self.visit(node.value), self._index(node.slice))

    def _notes_of_cells(self, targets: Iterable[ast.AST]) -> list[ast.stmt]:
        """Statements that tell of writes to variables of functions around this one."""
        found = sorted(stored_names(targets) & self._nonlocals)
        return [ast.Expr(operator("note_cell", _thunk(load(x)))) for x in found]

    def visit_Assign(self, node: ast.Assign) -> ast.AST | Sequence[ast.AST]:
        value = self.visit(node.value)
        only = node.targets[0] if len(node.targets) == 1 else None
        if isinstance(only, (ast.Attribute, ast.Subscript)):
            return ast.Expr(self._put(only, value))
        if any(isinstance(x, (ast.Tuple, ast.List)) for x in node.targets):
            value = operator("iterated", value)
        if all(isinstance(x, ast.Name) for x in node.targets):
            pairs = [self._target(x) for x in node.targets]
            after = [y for _, more in pairs for y in more]
            return [ast.copy_location(x, node) for x in (ast.Assign([x for x, _ in pairs], value), *after)]
        value_name = f"{TEMPORARY}whole{next(self._count)}"
        out: list[ast.stmt] = [assign(value_name, value)]
        for x in node.targets:  # each of them is set before the next one is looked at
            target, after = self._target(x)
            out += [ast.Assign([target], load(value_name)), *after]
        return [ast.copy_location(x, node) for x in out]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | Sequence[ast.AST]:
        if node.value is None:
            return ast.Pass()
        return self.visit_Assign(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | Sequence[ast.AST]:
        kind, value, target = ast.Constant(type(node.op).__name__), self.visit(node.value), node.target
        if not isinstance(target, ast.Name):
            if contains([node.value], (ast.NamedExpr, *YIELDS)):
                raise Unconvertible("an attribute or item is added to in place, by a value that sets a variable")
            value = _thunk(value)  # which is computed when the old value has been read
        if isinstance(target, ast.Attribute):
            name = ast.Constant(self._mangled(target.attr))
            return ast.Expr(operator("aug_attr", self.visit(target.value), name, kind, value))
        if isinstance(target, ast.Subscript):
            return ast.Expr(operator("aug_item", self.visit(target.value), self._index(target.slice), kind, value))
        if target.id in self._globals:
            return ast.Expr(
                operator(
                    "set_global", operator("aug", load(target.id), kind, value), _globals(), ast.Constant(target.id)
                )
            )
        new = assign(target.id, operator("aug", load(target.id), kind, value))
        return [ast.copy_location(x, node) for x in (*self._notes_of_cells([target]), new)]

    def visit_Delete(self, node: ast.Delete) -> ast.AST | Sequence[ast.AST]:
        out: list[ast.stmt] = []
        for x in node.targets:
            if isinstance(x, ast.Attribute):
                out.append(ast.Expr(operator("delattr", self.visit(x.value), ast.Constant(self._mangled(x.attr)))))
            elif isinstance(x, ast.Subscript):
                out.append(ast.Expr(operator("delitem", self.visit(x.value), self._index(x.slice))))
            elif isinstance(x, ast.Name) and x.id in self._globals:
                out.append(ast.Expr(operator("del_global", _globals(), ast.Constant(x.id))))
            else:
                out += [*self._notes_of_cells([x]), ast.Delete([x])]
        return [ast.copy_location(x, node) for x in out]

    # Expressions.

    def _mangled(self, attribute: str) -> str:
        is_private = attribute.startswith("__") and not attribute.endswith("__")
        if self._class and is_private and self._class.strip("_"):
            return f"_{self._class.lstrip('_')}{attribute}"
        return attribute

    def _index(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Slice):
            return operator(
                "slice",
                *(ast.Constant(None) if x is None else self.visit(x) for x in (node.lower, node.upper, node.step)),
            )
        if isinstance(node, ast.Tuple):
            return ast.Tuple([self._index(x) for x in node.elts], ast.Load())
        return self.visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST | Sequence[ast.AST]:
        new = operator("getattr", self.visit(node.value), ast.Constant(self._mangled(node.attr)))
        return ast.copy_location(new, node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST | Sequence[ast.AST]:
        return ast.copy_location(operator("getitem", self.visit(node.value), self._index(node.slice)), node)

    def visit_Starred(self, node: ast.Starred) -> ast.AST | Sequence[ast.AST]:
        if isinstance(node.ctx, ast.Store):
            return node
        return ast.copy_location(ast.Starred(operator("iterated", self.visit(node.value)), ast.Load()), node)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.AST | Sequence[ast.AST]:
        return ast.copy_location(ast.YieldFrom(operator("iterated", self.visit(node.value))), node)

    def visit_Call(self, node: ast.Call) -> ast.AST | Sequence[ast.AST]:
        if _is_operator(node):
            return node  # of the first pass
        args: list[ast.expr] = [self.visit(x) for x in node.args]
        keywords = [ast.keyword(x.arg, self.visit(x.value)) for x in node.keywords]
        name = node.func.id if isinstance(node.func, ast.Name) else None
        if name in _READ_THEIR_CALLER or (name in _READ_THEIR_CALLER_ALONE and not args):
            if self._depth:  # a side may never be gone
                return ast.copy_location(operator("unreadable", ast.Constant(name)), node)
            raise Unconvertible(f"{name}() reads the variables of the function that calls it")
        if name in _KEPT_CALLS:
            if name == "super" and not args and self._first is not None:
                args = [load("__class__"), load(self._first)]
            return ast.copy_location(ast.Call(node.func, args, keywords), node)
        new = operator("call", self.visit(node.func), *args)
        new.keywords = keywords
        if isinstance(node.func, ast.Attribute):  # a method of several lines is called at the one with its name
            line, column = node.func.end_lineno or node.lineno, node.func.end_col_offset or node.col_offset
            new.func.lineno = new.func.end_lineno = line
            new.func.col_offset = new.func.end_col_offset = column
        return ast.copy_location(new, node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST | Sequence[ast.AST]:
        if contains(node.values[1:], (ast.NamedExpr, *YIELDS)):
            return self.generic_visit(node)
        kind = "and_" if isinstance(node.op, ast.And) else "or_"
        values = [self.visit(x) for x in node.values]
        out = values[-1]
        for value in reversed(values[:-1]):
            out = operator(kind, value, _thunk(out))
        return ast.copy_location(out, node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST | Sequence[ast.AST]:
        if isinstance(node.operand, ast.Constant):
            return node
        return ast.copy_location(
            operator("unary", ast.Constant(type(node.op).__name__), self.visit(node.operand)), node
        )

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST | Sequence[ast.AST]:
        kind = ast.Constant(type(node.op).__name__)
        return ast.copy_location(operator("binary", kind, self.visit(node.left), self.visit(node.right)), node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST | Sequence[ast.AST]:
        left = self.visit(node.left)
        if len(node.ops) == 1:
            kind = ast.Constant(type(node.ops[0]).__name__)
            return ast.copy_location(operator("compare", kind, left, self.visit(node.comparators[0])), node)
        if contains(node.comparators[1:], (ast.NamedExpr, *YIELDS)):
            return self.generic_visit(node)
        kinds = _constant(tuple(type(x).__name__ for x in node.ops))
        rest = [_thunk(self.visit(x)) for x in node.comparators]
        return ast.copy_location(operator("chain", kinds, left, *rest), node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST | Sequence[ast.AST]:
        test = self.visit(node.test)
        yes, no = self.visit(node.body), self.visit(node.orelse)
        if contains([node.body, node.orelse], (ast.NamedExpr, *YIELDS)):
            return ast.copy_location(ast.IfExp(operator("known", test), yes, no), node)
        return ast.copy_location(operator("choose", test, _thunk(yes), _thunk(no)), node)

    def _display(self, node: Any) -> ast.AST | Sequence[ast.AST]:
        if isinstance(getattr(node, "ctx", None), ast.Store):
            return node
        self.generic_visit(node)
        return ast.copy_location(operator("new", node), node)

    visit_List = visit_Dict = visit_Set = _display

    def _comprehension(self, node: Any) -> ast.AST | Sequence[ast.AST]:
        if contains([node], (ast.NamedExpr,)):
            raise Unconvertible("a comprehension that sets a variable by :=")
        for each in node.generators:
            if each.is_async:
                raise Unconvertible("an asynchronous comprehension")
            each.iter = operator("iterated", self.visit(each.iter))
            each.ifs = [operator("known", self.visit(x)) for x in each.ifs]
        if isinstance(node, ast.DictComp):
            node.key, node.value = self.visit(node.key), self.visit(node.value)
        else:
            node.elt = self.visit(node.elt)
        return ast.copy_location(operator("new", node), node)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension


def _function(name: str, args: ast.arguments, body: list[ast.stmt], decorators: list[ast.expr]) -> ast.FunctionDef:
    new = ast.FunctionDef(name, args, body, decorators, None, None)
    if sys.version_info >= (3, 12):
        new.type_params = []  # pyright: ignore[reportAttributeAccessIssue]
    return new


def _constant(value: Any) -> ast.Constant:
    return ast.Constant(value)


def _thunk(value: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)


def _globals() -> ast.Call:
    return ast.Call(load("globals"), [], [])


def _is_operator(node: ast.Call) -> bool:
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    return isinstance(owner, ast.Constant) and owner.value == OPERATORS


# Code objects.


# By their ids: code objects of two files may be equal. What has an id is kept, so that it has it alone.
_by_original: Cache[int, tuple[types.CodeType, types.CodeType]] = Cache("converted code", 2**14)
_made: dict[int, types.CodeType] = {}


def is_converted(code: types.CodeType) -> bool:
    return id(code) in _made


def converted_code(code: types.CodeType, operators: object) -> types.CodeType:
    """The code object that asks operators.

    Raises:
        Unconvertible: it cannot be converted.
    """
    found = _by_original.get(id(code))
    if found is None:
        found = _by_original[id(code)] = code, _convert(code, operators)
    return found[1]


def _convert(code: types.CodeType, operators: object) -> types.CodeType:
    node, class_name = definition_of(code)
    node, converter = copy.deepcopy(node), _Converter(class_name)
    if isinstance(node, ast.AsyncFunctionDef):
        raise Unconvertible(f"{code.co_name} is asynchronous")
    # Named otherwise, so that its own name is that of the module in it.
    if isinstance(node, ast.Lambda):
        body = converter.lambda_(node, is_top_level=True)
        new = _function(f"{TEMPORARY}function", body.args, [ast.copy_location(ast.Return(body.body), node)], [])
        ast.copy_location(new, node)
    else:
        new = converter.function(node, is_top_level=True)
        new.name = f"{TEMPORARY}function"
    free = ast.arguments([], [ast.arg(x) for x in code.co_freevars], None, [], [], None, [])
    factory = ast.copy_location(_function(f"{TEMPORARY}factory", free, [new], []), new)
    module = _with_locations(ast.Module([factory], []))
    compiled = _inner_code(compile(module, code.co_filename, "exec", dont_inherit=True), new.name)
    return _asking(compiled.replace(co_name=code.co_name, co_qualname=code.co_qualname), operators)


def _with_locations(module: ast.Module) -> ast.Module:
    """The same tree, each node of which has a location: a call of an operator is at the line where it begins."""
    for node in ast.walk(ast.fix_missing_locations(module)):
        if isinstance(node, ast.Call) and _is_operator(node) and node.func.lineno == node.lineno:
            # Python says that a method is called where its name ends.
            node.func.end_lineno, node.func.end_col_offset = node.func.lineno, node.func.col_offset
    return module


def _inner_code(code: types.CodeType, name: str) -> types.CodeType:
    """The code object of an inner function."""
    pending = [code]
    while pending:
        for x in pending.pop().co_consts:
            if isinstance(x, types.CodeType):
                if x.co_name == name:
                    return x
                pending.append(x)
    raise AssertionError(f"no {name}")


def _asking(code: types.CodeType, operators: object) -> types.CodeType:
    """The code with the operators in the place of the constant that stands for them.

    Sides and bodies have the name of the function that they are of, for tracebacks and for errors that name places.
    """
    consts = []
    for x in code.co_consts:
        is_marker = type(x) is str and x == OPERATORS
        if isinstance(x, types.CodeType):
            is_side = x.co_name.startswith(TEMPORARY)
            named = x.replace(co_name=code.co_name, co_qualname=code.co_qualname) if is_side else x
            x = _asking(named, operators)
        consts.append(operators if is_marker else x)
    new = code.replace(co_consts=tuple(consts))
    _made[id(new)] = new
    return new


def converted(function: types.FunctionType, operators: object) -> types.FunctionType:
    """A function like another one that asks operators, with its closure, defaults and attributes.

    Raises:
        Unconvertible: it cannot be converted.
    """
    if is_converted(function.__code__):
        return function
    code = converted_code(function.__code__, operators)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple([cells[x] for x in code.co_freevars])
    new = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    new.__kwdefaults__ = function.__kwdefaults__
    new.__annotations__ = function.__annotations__
    new.__qualname__, new.__module__ = function.__qualname__, function.__module__
    if function.__dict__:
        new.__dict__.update(function.__dict__)
    return new
