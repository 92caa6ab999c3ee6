"""Which of PyTorch's tests stand apart: they are about a part of PyTorch that has no counterpart in JAX.

A test is told by what it does when PyTorch runs it (the functions that are called), by its name, or by its text;
never by what happens to it in translation.
"""

import inspect
import re
import signal
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

__all__ = ["APART", "SEEDS", "Apart", "Calls", "apart", "source_of"]


@dataclass(frozen=True)
class Apart:
    """A class of tests: one of the patterns is found in a test's id, its text, or is all of the name of a call."""

    name: str
    reason: str
    test: str | None = None
    source: str | None = None
    calls: str | None = None

    def holds(self, test: str, source: str, calls: Iterable[str]) -> bool:
        if self.test and re.search(self.test, test):
            return True
        if self.source and re.search(self.source, source):
            return True
        return bool(self.calls) and any(map(re.compile(self.calls).fullmatch, calls))


SEEDS = Apart(
    "chosen seeds",
    "PyTorch itself fails them with one of 32 other seeds (`scripts/suite/seeds.py`): they are of one sample of "
    "random numbers, which happens to be near its expectation",
)

# The name of a call is a compiled function's `__name__`, or "file.py:qualified name" for Python, below site-packages.
APART = (
    SEEDS,
    Apart(
        "quantized tensors",
        "JAX has no dtype that carries a scale",
        test=r"(?i)quantiz|qint|quint",
        calls=r"_?(make_)?(empty_)?(per_tensor_|per_channel_)?(affine_)?quantize\w*|_empty_affine_quantized|"
        r"torch/ao/nn/.*quantized/.*|torch/ao/quantization/quantize.*",
    ),
    Apart(
        "nested tensors of strided layout",
        "a prototype of PyTorch's own, in whose place its documentation names the jagged layout",
        test=r"test_nestedtensor\.py::TestNestedTensor(DeviceType|Autograd)?(CPU)?\.",
        calls=r"nested_tensor|_nested_tensor_from_\w+|_nested_view_from_buffer",  # of compiled code
    ),
    Apart(
        "complex numbers of half precision",
        "JAX has no such dtype",
        test=r"complex32|chalf",
        source=r"dtype=torch\.(complex32|chalf)\b|dtypes? = .*\b(complex32|chalf)\b|"
        r"for \w+ in [^:]*\b(complex32|chalf)\b|include_complex32=True|"
        r"\bdtype, torch\.chalf\b",
    ),
    Apart(
        "whole numbers of floats that they cannot hold",
        "undefined, says the documentation of `Tensor.to`: they differ from platform to platform",
        test=r"test_float_to_int_conversion_(nonfinite_cpu_u?int|finite_cpu_(uint8|int8|int32|int64))",
    ),
    Apart(
        "copy-on-write storages",
        "when PyTorch's storages copy, told by their addresses; arrays do not change",
        calls=r"_lazy_clone|_is_cow_tensor|_test_parallel_materialize",
    ),
    Apart("mkldnn tensors", "a layout of PyTorch's own", calls=r"_?to_mkldnn"),
    Apart(
        "named tensors",
        "JAX's arrays have no named dimensions",
        test=r"(?i)named_?tensor",
        source=r"(?<!\w)names=[(\[]",
        calls=r"torch/_tensor\.py:Tensor\.(refine_names|rename_?|align_to|unflatten_names)|align_(to|as|tensors)",
    ),
    Apart(
        "the profiler",
        "it observes PyTorch's kernels",
        test=r"(?i)profiler|kineto",
        calls=r"torch/(autograd/)?profiler(/profiler)?\.py:(profile|_KinetoProfile|emit_nvtx|emit_itt)\.__(init|enter)__|"
        r"torch/autograd/profiler_util\.py:.*",
    ),
    Apart(
        "anomaly mode",
        "it observes PyTorch's autograd engine",
        test=r"(?i)anomaly",
        calls=r"torch/autograd/anomaly_mode\.py:.*__init__",
    ),
    Apart(
        "fused kernels of PyTorch",
        "whether a module calls one, told by a mock in its place, and which one would be called",
        source=r"\bfastpath_mock\b|\b_fused_sdp_choice\(",
    ),
    Apart(
        "threads",
        "in and below PyTorch's autograd engine, which also calls within calls by others, so that no stack overflows",
        test=r"(?i)multithread|test_deep_reentrant",
        calls=r"threading\.py:Thread\.start",
    ),
    Apart(
        "pickled graphs",
        "tensors with their autograd graph, in a file",
        test=r"test_autograd\.py::.*pickl",
    ),
    Apart(
        "inner names of `grad_fn`",
        "names of PyTorch's C++ nodes and what they save",
        test=r"(?i)saved_variable_packing|grad_fn_attr",
        source=r"\._(raw_)?saved_(?!tensors_hooks)\w+|fn\.name\(\)|\w+Backward(\d\b|\" in)|grad_fn\.__class__|"
        r"graph_desc|\bAccumulateGrad\b",
    ),
    Apart(
        "inner tensors of transformations",
        "names of PyTorch's C++ wrappers, as it prints them",
        source=r"(GradTrackingTensor|BatchedTensor)\(lvl",
    ),
    Apart(
        "saved tensors that are written to",
        "an error, or a copy, where PyTorch would have lost what it needs; arrays do not change",
        test=r"test_autograd\.py::TestAutograd\.test_inplace$",
        source=r"modified by an inplace|saved tensor that has been detached|\"has been mutated\"",
        calls=r"torch/autograd/graph\.py:allow_mutation_on_saved_tensors|.*\._test_maxpool_indices",
    ),
    Apart(
        "logging tensors", "they observe PyTorch's dispatcher", test=r"logging_tensor", calls=r".*:LoggingTensor\..*"
    ),
    Apart(
        "operators of tests",
        "they are there for PyTorch's tests of its dispatcher",
        calls=r"_test_(warn_in_autograd|autograd_multiple_dispatch\w*|functorch_fallback)",
    ),
    Apart(
        "`make_fx`",
        "it records the operators of PyTorch's dispatcher; the tests look at that",
        source=r"\bmake_fx\(|def forward\(self, \w+_1",
        calls=r"torch/fx/experimental/proxy_tensor\.py:make_fx",
    ),
    Apart("subprocesses", "a program of its own, not a function", calls=r"subprocess\.py:Popen\.__init__|fork"),
    Apart("CUDA and MPS", "devices of PyTorch's own", test=r"(?i)_(cuda|mps)(_|$)"),
    Apart(
        "files of TorchScript",
        "they hold memory, which tensors of a call do not have: save before the call, or after it",
        test=r"(?i)test_jit\w*\.py::.*(save|load|serializ|export)",
    ),
    Apart(
        "lazy modules",
        "PyTorch makes their parameters at their first call: call them once before the translated one",
        test=r"test_lazy_modules\.py::",
    ),
    Apart(
        "batches of compressed sparse tensors",
        "PyTorch's CSR, CSC, BSR and BSC with batches or dense dimensions; a translated one is a matrix, and "
        "the others are `.to_sparse_coo()` or `.to_dense()`",
        test=r"TestSparseCompressedCPU\.test_(clone|copy|copy_errors|empty|empty_like|pickle|select_copy|to_dtype|validate|"
        r"invalid_input|sparse_compressed_\w+?)_|"
        r"TestSparseAnyCPU\.test_(as_sparse_gradcheck|gradcheck_to_dense|like_fns|reductions_sum|to_dense|to_sparse|"
        r"binary_operation_mul)_\w*Sparse(CSR|CSC|BSR|BSC)|"
        r"TestSparseCSRCPU\.test_(select|transpose|resize|resize_errors|compressed_layout_conversions_coverage|"
        r"sparse_cs[rc]_to_dense)_",
    ),
    Apart(
        "`out=` of sparse functions",
        "writes go to the memory of a strided tensor; take what the function gives",
        test=r"test_sparse\w*\.py::.*(test_(sparse_csr_unary_)?out_|test_addmm_\w*all_sparse_csr|test_block_addm|"
        r"test_as\w+_arcs\w+)",
    ),
    Apart(
        "C++ extensions",
        "they are compiled against PyTorch",
        test=r"(?i)cpp_extension",
        calls=r"torch/utils/cpp_extension\.py:load(_inline)?",
    ),
    Apart(
        "`torch.compile`",
        "PyTorch's compilers, in place of JAX's",
        test=r"(?i)dynamo|inductor|torch_?compile|aot_?autograd",
        calls=r"torch/__init__\.py:compile|torch/_dynamo/eval_frame\.py:_?(optimize|export)\w*|"
        r"torch/_inductor/compile_fx\.py:.*|torch/_functorch/aot_autograd\.py:aot_(function|module)\w*",
    ),
    Apart(
        "TorchScript's compiler",
        "passes over its graphs, their text, the profile of its interpreter, and its C++ classes",
        test=r"test_jit\w*\.py::Test(GraphRewritePasses|Peephole|AliasAnalysis|MkldnnFreez|Frozen|Freezing|ScriptProfile|"
        r"DtypeCustomRules|DtypeAnalysis|Torchbind|Backends)",
        source=r"FileCheck\(|_get_trace_graph|_jit_pass_|_freeze_module|assertExpectedGraph|assertGraphContains|graph_for\(|get_debug_state",
    ),
)


def apart(test: str, source: str = "", calls: Iterable[str] = ()) -> str | None:
    """The name of the class that a test belongs to, or none."""
    calls = tuple(calls)
    return next((x.name for x in APART if x.holds(test, source, calls)), None)


def source_of(function: Callable) -> str:
    """The text of a test without comments; empty if it has none."""
    try:
        return re.sub(r"#.*", "", inspect.getsource(inspect.unwrap(function)))
    except (OSError, TypeError):
        return ""


class Calls:
    """A context manager that gathers the names of the functions which the main thread calls within it.

    Looking makes a test that calls very many functions several times slower, so it ends after some seconds of
    processor time; what a test does it has begun with by then.
    """

    def __init__(self, seconds: float = 10) -> None:
        self._seconds = seconds
        self._compiled: set[str] = set()
        self._codes: set = set()
        self._compiling: FrameType | None = None

    def __enter__(self) -> "Calls":
        self._handler = signal.signal(signal.SIGVTALRM, lambda *_: sys.setprofile(None))
        signal.setitimer(signal.ITIMER_VIRTUAL, self._seconds)
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_) -> None:
        sys.setprofile(None)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, self._handler)

    def _see(self, frame, event: str, function) -> None:
        if self._compiling is not None:
            if frame is self._compiling and event == "return":
                self._compiling = None
        elif event == "c_call":
            self._compiled.add(function.__name__)
        elif event == "call":
            self._codes.add(frame.f_code)
            if frame.f_code.co_qualname in _COMPILING and _below(frame.f_code.co_filename).startswith("torch/"):
                self._compiling = frame

    def names(self) -> set[str]:
        return self._compiled | {f"{_below(code.co_filename)}:{code.co_qualname}" for code in self._codes}


_COMPILING = (
    "export",
    "_hop_compile_and_call",
    "materialize_as_graph",
    "create_fw_bw_graph",
    "flex_attention",
    "linearize",
)
"""PyTorch's functions that trace or compile what a test gives them, without the test asking for that."""
_PLACES = [sysconfig.get_path(name) for name in ("purelib", "stdlib")]


def _below(path: str) -> str:
    place = next((place for place in _PLACES if Path(path).is_relative_to(place)), None)
    return str(Path(path).relative_to(place)) if place else path
