"""Runs the graph of a TorchScript function: control flow, attributes of modules, and operators one by one.

The graphs are those that PyTorch shows, with the calls of functions and methods inlined.
"""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import jax
import torch

from ..errors import NoRuleError
from ..internals.torchscript import (
    Block,
    FunctionSchema,
    Graph,
    Node,
    ScriptObject,
    Value,
    create_object_with_type,
    inline,
)
from ..tensors.tensor import Torchish
from ..tensors.trees import flatten
from .operators import operator
from .values import class_of, enter, is_of, leave, new_instance, unwrapped

__all__ = ["is_native", "run_function", "run_method", "run_native"]

Body = Callable[..., Any]


def run_function(function: Any, args: tuple, kwargs: dict) -> Any:
    """Calls a scripted or traced function within a translated call.

    Raises:
        RuntimeError: the arguments are not those of its schema, or an operator fails in it.
        torch.jit.Error: its code raises an exception.
        NoRuleError: it has an operator without a rule.
    """
    return _run(function.inlined_graph, function.schema, (), args, kwargs)


def run_method(method: Any, args: tuple, kwargs: dict) -> Any:
    """Calls a method of a TorchScript module, or of an instance of a scripted class; raises as `run_function`."""
    return _run(method.inlined_graph, method.schema, (method.owner,), args, kwargs)


def run_native(call: Body, method: Any, args: tuple, kwargs: dict) -> Any:
    """Calls a method that is written in C++ by ``call(method, ...)``, which may read the memory of tensors.

    Raises:
        NoRuleError: there are tensors of a translated call, which have none, among the arguments.
    """
    if any(isinstance(value, Torchish) for value in flatten((args, kwargs))[0]):
        raise NoRuleError(f"{method.raw_owner._type()}.{method.name}")
    return call(method, *args, **kwargs)


def is_native(method: Any) -> bool:
    """Whether a method is of a class written in C++, and has no graph."""
    return str(method.raw_owner._type()).startswith(_NATIVE)


_NATIVE = "__torch__.torch.classes."


def _run(graph: Graph, schema: FunctionSchema, owner: tuple, args: tuple, kwargs: dict) -> Any:
    arguments = _bound(schema, (*owner, *args), kwargs)
    program, attributes = ScriptGraph(graph), Attributes()
    (result,) = ScriptFrame(attributes).run(program.block, *arguments)
    attributes.store()
    return leave(result, schema.returns[0].type)


def _bound(schema: FunctionSchema, args: Sequence, kwargs: dict) -> list:
    """The arguments of a call, in the order of the schema, with its defaults."""
    declared = list(schema.arguments)
    if len(args) > len(declared):
        raise RuntimeError(
            f"{schema.name}() expected at most {len(declared)} argument(s) but received {len(args)} argument(s). "
            f"Declaration: {schema}"
        )
    bound, rest = [enter(value, argument.type) for value, argument in zip(args, declared, strict=False)], dict(kwargs)
    for argument in declared[len(args) :]:
        if argument.name in rest:
            bound.append(enter(rest.pop(argument.name), argument.type))
        elif argument.has_default_value():
            bound.append(argument.default_value)
        else:
            raise RuntimeError(
                f"{schema.name}() is missing value for argument '{argument.name}'. Declaration: {schema}"
            )
    if rest:
        raise RuntimeError(
            f"Unknown keyword argument '{next(iter(rest))}' for operator '{schema.name}'. Schema: {schema}"
        )
    return bound


@dataclasses.dataclass(slots=True)
class Instruction:
    """One node: what it does with the values of its inputs, and which values it gives."""

    body: Body
    inputs: list[int]
    outputs: list[int]
    scope: str
    node: Any


@dataclasses.dataclass(slots=True)
class ScriptBlock:
    """Steps in their order; `inputs` and `outputs` are the numbers of values."""

    inputs: list[int]
    steps: list[Instruction]
    outputs: list[int]


class ScriptGraph:
    """The graph of a function as steps, with what each does looked up once."""

    def __init__(self, graph: Graph):
        self._graph = graph  # nodes do not keep it alive
        self.block = _block(graph)


def _block(block: Graph | Block) -> ScriptBlock:
    steps = [
        Instruction(_body(node), _numbers(node.inputs()), _numbers(node.outputs()), _scope(node), node)
        for node in block.nodes()
    ]
    return ScriptBlock(_numbers(block.inputs()), steps, _numbers(block.outputs()))


def _numbers(values: Iterable[Value]) -> list[int]:
    return [value.unique() for value in values]


def _scope(node: Node) -> str:
    """The path of the module that a node comes from, as the operations of Python modules are named."""
    if not node.kind().startswith("aten::"):
        return ""
    path = re.sub(r"\([^)]*\)", "", node.getModuleHierarchy()).replace("UNKNOWN_INSTANCE", "")
    return path.strip(".")


class Attributes:
    """The attributes that a call has read from modules. Lists are Python copies, which are written back at the end."""

    def __init__(self):
        self._taken: dict[tuple[int, str], tuple[Any, Any]] = {}

    def get(self, owner: Any, name: str):
        if not _is_torchscripts(owner):
            return getattr(owner, name)
        key = (hash(owner), name)
        if key in self._taken:
            return self._taken[key][1]
        value = unwrapped(owner.getattr(name))
        if _is_copied(value):
            self._taken[key] = (owner, value)
        return value

    def set(self, owner: Any, name: str, value: Any) -> None:
        if not _is_torchscripts(owner):
            setattr(owner, name, value)
            return
        owner.setattr(name, value)
        if _is_copied(value):
            self._taken[hash(owner), name] = (owner, value)
        else:
            self._taken.pop((hash(owner), name), None)

    def store(self) -> None:
        for (_, name), (owner, value) in self._taken.items():
            owner.setattr(name, value)


def _is_torchscripts(value: Any) -> bool:
    return isinstance(value, ScriptObject)


def _is_copied(value: Any) -> bool:
    return isinstance(value, (list, dict)) or class_of(value) is not None


class ScriptFrame:
    """The values of one call of a program, by their numbers."""

    def __init__(self, attributes: Attributes):
        self.attributes = attributes
        self._values: dict[int, Any] = {}

    def run(self, block: ScriptBlock, *arguments: Any) -> list:
        values = self._values
        values.update(zip(block.inputs, arguments, strict=True))
        for step in block.steps:
            inputs = [values[number] for number in step.inputs]
            try:
                with jax.named_scope(step.scope) if step.scope else contextlib.nullcontext():
                    result = step.body(self, *inputs)
            except Exception as error:
                raise _located(error, step.node)  # noqa: B904
            if len(step.outputs) == 1:
                values[step.outputs[0]] = result
            elif step.outputs:
                values.update(zip(step.outputs, result, strict=True))
        return [values[number] for number in block.outputs]

    def call(self, method: Any, *args: Any):
        if is_native(method):
            return run_native(lambda method, *args: method(*args), method, args[1:], {})
        (result,) = ScriptFrame(self.attributes).run(ScriptGraph(method.inlined_graph).block, *args)
        return result


_PREFIX = "The following operation failed in the TorchScript interpreter."


def _located(error: Exception, node: Node) -> Exception:
    """What is raised for an error in a node: PyTorch raises a RuntimeError for most, and tells the line."""
    if getattr(error, "_in_torchscript", False):
        return error
    place = cast(Any, node).sourceRange().rstrip()  # a string, whatever its annotation says
    if not isinstance(error, torch.jit.Error) and type(error).__module__.partition(".")[0] not in ("torch2jax", "jax"):
        text = f"{_PREFIX}\nTraceback of TorchScript (most recent call last):\n{place}\n{type(error).__name__}: {error}"
        cause, error = error, RuntimeError(text)
        error.__cause__ = cause
    elif place:
        error.add_note(f"In TorchScript:\n{place}")
    error._in_torchscript = True  # pyright: ignore[reportAttributeAccessIssue]
    return error


def _body(node: Node) -> Body:
    make = _KINDS.get(node.kind())
    if make is not None:
        return make(node)
    body = operator(node)
    return lambda frame, *inputs: body(*inputs)


def _constant(node: Node) -> Body:
    value = node.output().toIValue()
    return lambda frame: value


def _constantly(value: Any) -> Callable[[Any], Body]:
    return lambda node: lambda frame, *inputs: value


def _same(node: Node) -> Body:
    return lambda frame, value: value


def _if(node: Node) -> Body:
    chosen, otherwise = map(_block, node.blocks())
    is_single = node.outputsSize() == 1

    def body(frame: ScriptFrame, condition: Any):
        results = frame.run(chosen if condition else otherwise)
        return results[0] if is_single else results

    return body


def _loop(node: Node) -> Body:
    (block,) = map(_block, node.blocks())
    is_single = node.outputsSize() == 1

    def body(frame: ScriptFrame, trips: int, condition: Any, *carried: Any):
        trip, values = 0, list(carried)
        while trip < trips and condition:
            condition, *values = frame.run(block, trip, *values)
            trip += 1
        return values[0] if is_single else values

    return body


def _get_attribute(node: Node) -> Body:
    name = node.s("name")
    return lambda frame, owner: frame.attributes.get(owner, name)


def _set_attribute(node: Node) -> Body:
    name = node.s("name")
    return lambda frame, owner, value: frame.attributes.set(owner, name, value)


def _call_method(node: Node) -> Body:
    name = node.s("name")
    return lambda frame, owner, *args: frame.call(_method(owner, name), owner, *args)


def _method(owner: Any, name: str):
    if _is_torchscripts(owner):
        return owner._get_method(name)
    return create_object_with_type(class_of(owner))._get_method(name)


def _create_object(node: Node) -> Body:
    kind = node.output().type()
    if kind.annotation_str.startswith(_NATIVE):
        return lambda frame: create_object_with_type(kind)
    return lambda frame: new_instance(kind)


def _call_enter(node: Node) -> Body:
    return lambda frame, context: frame.call(_method(context, "__enter__"), context)


def _call_exit(node: Node) -> Body:
    return lambda frame, context: frame.call(_method(context, "__exit__"), context, None, None, None)


def _list(node: Node) -> Body:
    return lambda frame, *items: list(items)


def _tuple(node: Node) -> Body:
    return lambda frame, *items: items


def _dictionary(node: Node) -> Body:
    return lambda frame, *items: dict(zip(items[::2], items[1::2], strict=True))


def _unpack(node: Node) -> Body:
    count = node.outputsSize()

    def body(frame: ScriptFrame, items: Any):
        if len(items) != count:
            raise RuntimeError(f"Expected {count} elements in a list but found {len(items)}")
        return items[0] if count == 1 else items

    return body


def _tuple_index(node: Node) -> Body:
    def body(frame: ScriptFrame, items: Any, index: int):
        if not -len(items) <= index < len(items):
            raise IndexError("Tuple index out of range")
        return items[index]

    return body


def _tuple_slice(node: Node) -> Body:
    begin, end = node.i("beg"), node.i("end")
    return lambda frame, items: items[begin:end]


def _is_instance(node: Node) -> Body:
    kinds = node.tys("types")
    return lambda frame, value: any(is_of(value, kind) for kind in kinds)


def _to_list(node: Node) -> Body:
    def body(frame: ScriptFrame, tensor: torch.Tensor, dim: int, kind: Any):
        if tensor.dim() != dim:
            raise RuntimeError(f"Output annotation list dimension {dim} does not match a tensor of {tensor.dim()}")
        return tensor.tolist()

    return body


def _raise(node: Node) -> Body:
    def body(frame: ScriptFrame, message: str, *kind: Any):
        raise torch.jit.Error(f"{_PREFIX}\nTraceback of TorchScript (most recent call last):\n{message}")

    return body


def _print(node: Node) -> Body:
    return lambda frame, *values: print(*values)  # noqa: T201


def _python_call(node: Any) -> Body:
    function, convention = node.pyobj(), node.cconv()
    scalars = node.scalar_args()

    def body(frame: ScriptFrame, *tensors: torch.Tensor):
        given, options = iter(tensors), iter(scalars)
        return function(*(next(options) if each == "c" else next(given) for each in convention))

    return body


def _fork(node: Node) -> Body:
    graph = node.g("Subgraph").copy()
    inline(graph)
    program = ScriptGraph(graph)

    def body(frame: ScriptFrame, *inputs: Any):
        (result,) = ScriptFrame(frame.attributes).run(program.block, *inputs)
        return result

    return body


def _enum_attribute(name: str) -> Callable[[Any], Body]:
    return lambda node: lambda frame, member: getattr(member, name)


_KINDS: dict[str, Callable[[Any], Body]] = {
    "prim::Constant": _constant,
    "prim::Uninitialized": _constantly(None),
    "prim::If": _if,
    "prim::Loop": _loop,
    "prim::GetAttr": _get_attribute,
    "prim::SetAttr": _set_attribute,
    "prim::CallMethod": _call_method,
    "prim::CreateObject": _create_object,
    "prim::Enter": _call_enter,
    "prim::Exit": _call_exit,
    "prim::ListConstruct": _list,
    "prim::TupleConstruct": _tuple,
    "prim::DictConstruct": _dictionary,
    "prim::ListUnpack": _unpack,
    "prim::TupleUnpack": _unpack,
    "prim::TupleIndex": _tuple_index,
    "prim::TupleSlice": _tuple_slice,
    "prim::isinstance": _is_instance,
    "prim::unchecked_cast": _same,
    "prim::EnumName": _enum_attribute("name"),
    "prim::EnumValue": _enum_attribute("value"),
    "prim::tolist": _to_list,
    "prim::RaiseException": _raise,
    "prim::Print": _print,
    "prim::PythonOp": _python_call,
    "prim::fork": _fork,
    "prim::awaitable": _fork,
}
