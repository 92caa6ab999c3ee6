"""TorchScript: C++ objects, and their wrappers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import _jit_internal
from torch.jit import _builtins, _recursive, _state

__all__ = [
    "Block",
    "BufferDict",
    "ConcreteModuleType",
    "FunctionSchema",
    "Graph",
    "ModuleDict",
    "Node",
    "ParameterDict",
    "ScriptDict",
    "ScriptFunction",
    "ScriptList",
    "ScriptMethod",
    "ScriptModule",
    "ScriptObject",
    "Value",
    "builtins",
    "create_object_with_type",
    "get_python_class",
    "get_script_class",
    "get_tracing_state",
    "inline",
    "jit_internal",
    "wrap_cpp_module",
]

_C: Any = torch._C

Graph = torch._C.Graph
"""The class of graphs, which are blocks too."""

Block = torch._C.Block
"""That of what a node runs, as the body of a loop: ``nodes()`` in order."""

Node = torch._C.Node
"""That of a step: its ``kind()``, ``inputs()``, ``outputs()``, and attributes by name."""

Value = torch._C.Value
"""That of what a node takes or gives: its number is ``unique()``."""

FunctionSchema = torch._C.FunctionSchema
"""That of what a function takes and gives, with names and types."""

ScriptObject = torch._C.ScriptObject
"""The class of objects of TorchScript's, modules included."""

ScriptModule = torch._C.ScriptModule
"""That of its modules, below what `torch.jit.script` gives."""

ScriptMethod = torch._C.ScriptMethod
"""That of a module's methods; its ``__call__`` runs one."""

ScriptFunction = torch._C.ScriptFunction
"""That of functions; its ``__call__`` runs one."""

ScriptList = _C.ScriptList
"""That of lists that code shares with TorchScript."""

ScriptDict = _C.ScriptDict
"""That of dictionaries that code shares with TorchScript."""

ModuleDict = torch._C.ModuleDict
"""The parts of a module of C++: ``items()`` are names and modules."""

ParameterDict = torch._C.ParameterDict
"""The same of its parameters."""

BufferDict = torch._C.BufferDict
"""The same of its buffers."""

ConcreteModuleType = torch._C.ConcreteModuleType
"""What a module is compiled as; ``from_jit_type`` of a type gives one that knows its attributes."""

create_object_with_type = _C._create_object_with_type
"""A new object of a type of TorchScript's, with nothing in it."""

get_python_class = _state._get_python_class
"""Python's class of a scripted one, by its qualified name; None for one from a file."""

get_script_class = _state._get_script_class
"""TorchScript's type for a class of Python's; None for one that is not scripted."""

wrap_cpp_module = _recursive.wrap_cpp_module
"""A module of Python's around one of C++."""

inline = _C._jit_pass_inline
"""Puts the bodies of functions in the place of a graph's calls. PyTorch does so for all graphs but those of `fork`."""

get_tracing_state: Callable[[], object | None] = torch._C._get_tracing_state
"""What `torch.jit.trace` records into on this thread, None outside of it."""

# Modules in which something is exchanged.

builtins = _builtins
"""The module that finds the operator that a function of Python's is."""

jit_internal = _jit_internal
"""The module of what its compiler asks of functions of Python's."""
