"""XLA's foreign function interface in ctypes: the structures of its C header, one handler, and the errors it answers.

The header ships with jaxlib, ``xla/ffi/api/c_api.h`` below `jax.ffi.include_dir`. One handler serves every function: an
attribute of the call, a number, says which `site` runs.
"""

import ctypes
import functools
import hashlib
import itertools
import re
import secrets
import threading
import traceback
import weakref
from collections import Counter
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

import jax
import jaxlib

from ..runtime.errors.tracebacks import hides_frames, without_frames

TARGET = "torch2jax_call"
_KNOWN_MAJOR = 0
_KNOWN_MINORS = range(3, 16)  # XLA keeps accepting handlers of an older minor version, as this one says it is
_WRITTEN_FOR = (0, 3)
_METADATA = 1  # XLA_FFI_Extension_Metadata
_INTERNAL = 13  # XLA_FFI_Error_Code_INTERNAL


class _Version(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("major", c_int), ("minor", c_int)]


class _Extension(Structure):
    _fields_ = [("size", c_size_t), ("type", c_int), ("next", c_void_p)]


class _Metadata(Structure):
    _fields_ = [("size", c_size_t), ("api_version", _Version), ("traits", c_uint32), ("state_type", c_int64)]


class _MetadataExtension(Structure):
    _fields_ = [("base", _Extension), ("metadata", POINTER(_Metadata))]


class _FfiBuffer(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extension", c_void_p),
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", c_void_p),
    ]


class _Scalar(Structure):
    _fields_ = [("dtype", c_int), ("value", POINTER(c_int64))]


class _Api(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extension", c_void_p),
        ("api_version", _Version),
        ("internal", c_void_p),
        ("error_create", c_void_p),
        ("error_get_message", c_void_p),
        ("error_destroy", c_void_p),
        ("handler_register", c_void_p),
        ("stream_get", c_void_p),
        ("type_register", c_void_p),
        ("execution_context_get", c_void_p),
        ("state_set", c_void_p),
    ]


class _ErrorCreate(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("message", c_char_p), ("code", c_int)]


class _StreamGet(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("context", c_void_p), ("stream", c_void_p)]


class _StateSet(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("extension", c_void_p),
        ("context", c_void_p),
        ("stage", c_int),
        ("type", c_void_p),
        ("state", c_void_p),
    ]


class _TypeInfo(Structure):
    _fields_ = [("size", c_size_t), ("extension", c_void_p), ("deleter", c_void_p)]


class CallFrame(Structure):
    """XLA's argument to a handler; the function's arguments, results and attributes are stored inline."""

    _fields_ = [
        ("size", c_size_t),
        ("extension", c_void_p),
        ("api", c_void_p),
        ("context", c_void_p),
        ("stage", c_int),
        ("args_size", c_size_t),
        ("args_extension", c_void_p),
        ("args_count", c_int64),
        ("args_types", c_void_p),
        ("args", c_void_p),
        ("rets_size", c_size_t),
        ("rets_extension", c_void_p),
        ("rets_count", c_int64),
        ("rets_types", c_void_p),
        ("rets", c_void_p),
        ("attrs_size", c_size_t),
        ("attrs_extension", c_void_p),
        ("attrs_count", c_int64),
        ("attrs_types", c_void_p),
        ("attrs_names", c_void_p),
        ("attrs", POINTER(POINTER(_Scalar))),
    ]


DATA_OFFSET = _FfiBuffer.data.offset
"""The offset of the data's address in a buffer's structure."""

_HandlerType = ctypes.CFUNCTYPE(c_void_p, c_void_p)
_Function = ctypes.CFUNCTYPE(c_void_p, c_void_p)

_Deleter = ctypes.CFUNCTYPE(None, c_void_p)

_sites: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
# Numbers are unique beyond this process: XLA's persistent compilation cache may hand a program of another one back.
_numbers = itertools.count(secrets.randbits(62))
_counts: Counter[str] = Counter()
_given: set[int] = set()
_registering_sites = threading.Lock()
# An executable owns a state for each of its calls, and lives as long as it runs: Python's keepalives may end before.
_held: dict[int, object] = {}
_states = itertools.count(1)
_state_type = c_int64(0)
_registering = threading.Lock()
_platforms: set[str] = set()


def register(site: object, identity: str | None = None) -> int:
    """Gives a site, a callable that takes a `CallFrame`, its number; the number does not keep it alive.

    Args:
        identity: what the number is made of, so that a process that registers the same in the same order has it too,
            and finds its programs in JAX's cache on disk. No number is given twice, whatever that is.
    """
    with _registering_sites:
        number = next(_numbers) if identity is None else _number_of(identity)
        while number in _given or number in _sites:
            number = next(_numbers)
        if identity is not None:
            _given.add(number)
        _sites[number] = site
    return number


def _number_of(identity: str) -> int:
    _counts[identity] += 1
    digest = hashlib.sha256(f"{identity} {_counts[identity]}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


def registered() -> int:
    """The number of sites that are alive."""
    return len(_sites)


@functools.cache
def header_version() -> tuple[int, int]:
    """The version of the interface that the installed jaxlib speaks."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text()))
        return int(found["MAJOR"]), int(found["MINOR"])
    except (OSError, KeyError):
        return -1, -1


def check_version() -> None:
    """Raises an error unless the installed jaxlib has a known version of the interface.

    Raises:
        NotImplementedError: it does not; the message names the versions and the way out.
    """
    major, minor = header_version()
    if major != _KNOWN_MAJOR or minor not in _KNOWN_MINORS:
        found = f"{major}.{minor}" if major >= 0 else "without a readable version"
        raise NotImplementedError(
            f"jaxlib {jaxlib.__version__} has the foreign function interface {found}; torch2jax knows versions "
            f"{_KNOWN_MAJOR}.{_KNOWN_MINORS[0]} to {_KNOWN_MAJOR}.{_KNOWN_MINORS[-1]}. Install a version of jax that "
            'this torch2jax supports, or pass method="callback", which is slower and needs no such interface'
        )


def register_target(platform: str) -> str:
    """Registers the handler for ``"cpu"`` or ``"CUDA"`` once, and returns the name of its target."""
    check_version()
    with _registering:
        if platform not in _platforms:
            types: Any = {
                "type_id": _capsule(_address_of(_state_type)),
                "type_info": _capsule(_address_of(_state_info)),
            }
            jax.ffi.register_ffi_type(f"{TARGET}_state", types, platform=platform)
            stages = {"instantiate": _capsule(_address(_instantiator)), "execute": _capsule(_address(_handler))}
            jax.ffi.register_ffi_target(TARGET, stages, platform=platform)
            _platforms.add(platform)
    return TARGET


def stream_of(frame: CallFrame) -> int:
    """The address of the CUDA stream that the call runs on."""
    request = _StreamGet(ctypes.sizeof(_StreamGet), None, frame.context, None)
    error = _Function(_Api.from_address(frame.api).stream_get)(ctypes.addressof(request))
    if error:
        raise RuntimeError("XLA gave no stream for a call on a GPU")
    return request.stream or 0


def _handle(address: int) -> int | None:
    frame = CallFrame.from_address(address)
    try:
        if frame.extension:
            return _reply_metadata(frame.extension)
        _site(frame)(frame)
    except BaseException as error:
        return _error(frame.api, error)
    return None


def _instantiate(address: int) -> int | None:
    frame = CallFrame.from_address(address)
    try:
        if frame.extension:
            return _reply_metadata(frame.extension)
        state = next(_states)
        _held[state] = _site(frame)
        kind = ctypes.addressof(_state_type)
        arguments = _StateSet(ctypes.sizeof(_StateSet), None, frame.context, frame.stage, kind, state)
        return _Function(_Api.from_address(frame.api).state_set)(ctypes.addressof(arguments))
    except BaseException as error:
        return _error(frame.api, error)


def _release(state: int) -> None:
    _held.pop(state, None)


def _site(frame: CallFrame) -> Callable[[CallFrame], None]:
    site = _sites.get(frame.attrs[0].contents.value[0])
    if site is None:
        raise RuntimeError("the PyTorch function of this compiled program no longer exists; compile it again")
    return site


def _reply_metadata(extension: int) -> None:
    if _Extension.from_address(extension).type == _METADATA:
        metadata = _MetadataExtension.from_address(extension).metadata.contents
        metadata.api_version.major, metadata.api_version.minor = min(_WRITTEN_FOR, header_version())
        metadata.state_type = _state_type.value


def _error(api: int, error: BaseException) -> int | None:
    if hides_frames():
        without_frames(error)
    message = "".join(traceback.format_exception(error)).encode(errors="replace").replace(b"\0", b"")
    arguments = _ErrorCreate(ctypes.sizeof(_ErrorCreate), None, message, _INTERNAL)
    return _Function(_Api.from_address(api).error_create)(ctypes.addressof(arguments))


def _address(function: Any) -> int | None:
    return ctypes.cast(function, c_void_p).value


_capsule = jax.ffi.pycapsule
_address_of = ctypes.addressof
_handler = _HandlerType(_handle)
_instantiator = _HandlerType(_instantiate)
_deleter = _Deleter(_release)
_state_info = _TypeInfo(ctypes.sizeof(_TypeInfo), None, _address(_deleter))
