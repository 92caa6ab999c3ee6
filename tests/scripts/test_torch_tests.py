"""`scripts/torch_tests.py`: what it makes of files, errors and outcomes, on files of our own."""

import ast
import sys
import textwrap
import unittest

import pytest
import torch
from torch.testing._internal.common_utils import set_rng_seed

from scripts.suite import apart as classes, loading, state, worker
from scripts.suite.outcomes import Collected, Outcome, Results, describe, reason
from scripts.suite.page import page, rows
from scripts.suite.seeds import passes_by_its_seed
from scripts.torch_tests import files_of, selected

TESTS = """
    from __future__ import annotations

    import unittest

    import no_such_package_anywhere
    import torch.no_such_module as renamed
    from torch.testing._internal.common_utils import TestCase, decorates_nothing, no_such_list, run_tests
    from tests_helper import here, gone_there
    from helper_lists import few, more_and_refs

    flag = renamed.flag or no_such_list

    @decorates_nothing
    class TestThings(TestCase):
        field = renamed.attribute

        @decorates_nothing("a reason")
        def test_decorated(self):
            assert not no_such_list and not flag and few == [1, 2] and more_and_refs == [3]

        @no_such_list.attribute
        def test_attribute(self):
            assert here() == 1

        @staticmethod
        @no_such_list.attribute
        def three():
            return 3

        def test_static(self):
            assert self.three() == 3

        def test_needs(self):
            with no_such_list("x"):
                pass

    for n in [1, 0]:
        setattr(TestThings, f"test_{n}", lambda self, n=n: 1 // n)
        last = 1 // n
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """PyTorch's folder of tests, with one file, in a process that forgets it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    (tmp_path / "test_things.py").write_text(textwrap.dedent(TESTS))
    (tmp_path / "tests_helper.py").write_text("from torch import gone_entirely\ndef here(): return 1\n")
    (tmp_path / "helper_lists.py").write_text("more = [3]\ndef get_few(): return [1, 2]\n")
    loading.install(tmp_path)
    yield tmp_path
    for name in ("test_things", "tests_helper", "helper_lists", "test_functions"):
        sys.modules.pop(name, None)


def test_a_file_loads_without_what_is_gone(folder):
    module = loading.load(folder, "test_things.py")
    tests = loading.tests_of(module)
    names = ["test_0", "test_1", "test_attribute", "test_decorated", "test_needs", "test_static"]
    assert list(tests) == [f"TestThings.{name}" for name in names]
    result = unittest.TestResult()
    unittest.TestSuite(case(name) for case, name in tests.values()).run(result)
    assert [test.id().rpartition(".")[2] for test, _ in result.errors + result.failures] == ["test_0", "test_needs"]
    lost = vars(module)["__lost__"].names
    assert "torch.testing._internal.common_utils.no_such_list" in lost
    assert "helper_lists.few" not in lost
    assert "decorators of three" in lost
    assert vars(sys.modules["tests_helper"])["__lost__"].names == ["torch.gone_entirely"]


FUNCTIONS = """
    import pytest

    def test_plain(): pass

    @pytest.mark.parametrize("x", [1, pytest.param(0, marks=pytest.mark.skipif(True, reason="no zero"))])
    @pytest.mark.parametrize(("y", "z"), [(1, 2), (1, 3)])
    def test_product(x, y, z):
        assert x * y * z == 2

    @pytest.mark.skipif(True, reason="never")
    def test_never(): pass

    def test_skips(): pytest.skip("now")
"""


def test_functions_are_tests_for_each_of_their_parameters(folder):
    (folder / "test_functions.py").write_text(textwrap.dedent(FUNCTIONS))
    tests = loading.tests_of(loading.load(folder, "test_functions.py"))
    result = unittest.TestResult()
    unittest.TestSuite(case(name) for case, name in tests.values()).run(result)

    def named(found):
        return {test.id().rpartition(".Functions.")[2]: why.strip().rpartition("\n")[2] for test, why in found}

    assert list(tests) == [
        "Functions.test_never",
        "Functions.test_plain",
        *(f"Functions.test_product[{i}-{j}]" for i in range(2) for j in range(2)),
        "Functions.test_skips",
    ]
    assert named(result.failures + result.errors) == {"test_product[1-0]": "AssertionError"}
    assert named(result.skipped) == {
        "test_never": "never",
        "test_product[0-1]": "no zero",
        "test_product[1-1]": "no zero",
        "test_skips": "now",
    }


def test_the_class_of_a_device_calls_what_it_inherits_from():
    source = """
    import unittest
    class Base(unittest.TestCase):
        def setUp(self): super(self.__class__, self).setUp()
        def test_it(self): pass
    class OfDevice(Base): pass
    """
    namespace = {}
    exec(compile(loading.mended(textwrap.dedent(source)), "<tests>", "exec"), namespace)
    assert namespace["OfDevice"]("test_it").run().wasSuccessful()


def test_what_is_gone_changes_nothing():
    gone = loading.Gone("x")
    assert not gone
    assert list(gone) == []
    assert gone(len) is len
    assert gone("reason", skip=True)(len) is len

    class Child(gone):  # type: ignore[misc]
        pass

    assert Child.__bases__ == (object,)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("ValueError: bad shape (2, 3) and [4]", "ValueError: bad shape SHAPE and SHAPE"),
        ("RuntimeError: at 0x7f12ab, 17 of 3.5e-2", "RuntimeError: at ADDRESS, N of N"),
        ("TypeError: float64 at index -1", "TypeError: float64 at index N"),
        ("AssertionError: Tensor-likes are not close!\n\nMismatched: 3", "AssertionError: Tensor-likes are not close!"),
        ('AssertionError: "this.*" does not match "that"', 'AssertionError: "…" does not match "that"'),
        ("NoRuleError: no rule for x, called in test_y. Add one", "NoRuleError: no rule for x. Add one"),
        ("OSError: no file /tmp/some/where.txt", "OSError: no file PATH"),
        ("KeyError: 'weight_ih_l0'", "KeyError: 'weight_ih_l0'"),
        ("ValueError:", "ValueError"),
    ],
)
def test_reasons_leave_out_what_differs(error, expected):
    assert reason(error) == expected


def test_the_error_below_a_sample_is_told():
    error = Exception("what happened\n\nCaused by sample input at index 3")
    assert describe(error).startswith("Exception: what happened")
    error.__cause__ = ValueError("what happened")
    assert describe(error) == "ValueError: what happened"


@pytest.mark.parametrize(
    ("test", "source", "calls", "expected"),
    [
        ("test_nn.py::TestNN.test_Embedding_sparse", "", {"to_sparse_csr"}, None),
        ("test_torch.py::T.test_x_cpu_complex32", "", (), "complex numbers of half precision"),
        ("test_torch.py::T.test_x", "x = torch.ones(3, dtype=torch.chalf)", (), "complex numbers of half precision"),
        ("test_torch.py::T.test_x_cpu_half", "@dtypes(torch.half, torch.chalf)\n{torch.chalf: tol(1)}", (), None),
        ("test_torch.py::T.test_x", "", {"_lazy_clone"}, "copy-on-write storages"),
        ("test_autograd.py::T.test_x", "y.grad_fn._saved_self", (), "inner names of `grad_fn`"),
        ("test_autograd.py::T.test_x", "y.grad_fn.next_functions", (), None),
        ("test_autograd.py::T.test_x", "torch._C._autograd._saved_tensors_hooks_is_enabled()", (), None),
        ("test_autograd.py::T.test_x", "", {"threading.py:Thread.start"}, "threads"),
        ("test_autograd.py::T.test_pickle", "", (), "pickled graphs"),
        ("test_nn.py::T.test_pickle", "", (), None),
        (
            "test_autograd.py::T.test_x",
            "has been modified by an inplace operation",
            (),
            "saved tensors that are written to",
        ),
        ("test_autograd.py::T.test_vjp_logging_tensor", "", (), "logging tensors"),
        ("test_autograd.py::T.test_x", "", {"_test_warn_in_autograd"}, "operators of tests"),
        ("test_vmap.py::T.test_x", "graph = make_fx(f)(x)", (), "`make_fx`"),
        ("test_nn.py::T.test_to_barracuda", "", (), None),
        ("test_nn.py::T.test_x", "", {"nested_tensor"}, "nested tensors of strided layout"),
        ("test_nestedtensor.py::TestNestedTensorSubclassCPU.test_x", "", {"jagged_from_list"}, None),
        ("test_nestedtensor.py::TestNestedTensorDeviceTypeCPU.test_x", "", (), "nested tensors of strided layout"),
    ],
)
def test_classes_apart(test, source, calls, expected):
    assert classes.apart(test, source, calls) == expected


def test_calls_are_those_of_a_test():
    import torch

    with classes.Calls() as calls:
        torch.nn.functional.relu(torch.zeros(2).to_sparse().to_dense())
    names = calls.names()
    assert {"to_sparse", "torch/nn/functional.py:relu"} <= names
    assert "to_sparse_csr" not in names


def test_what_pytorch_compiles_unasked_is_not_a_call_of_a_test(monkeypatch):
    import torch
    from torch._higher_order_ops import utils

    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # a call that is seen, and quick
    with classes.Calls() as calls:
        utils._hop_compile_and_call(torch.nn.functional.relu, (torch.zeros(2),))
        torch.nn.functional.selu(torch.zeros(2))
    names = calls.names()
    assert {"torch/_higher_order_ops/utils.py:_hop_compile_and_call", "torch/nn/functional.py:selu"} <= names
    assert "torch/nn/functional.py:relu" not in names


def test_a_test_for_each_device_needs_no_other_device():
    source = """
    @requires_cuda
    @parametrize("device", [cpu, cuda])
    def test_both(device): pass
    @requires_cuda
    def test_one(): pass
    """
    text = ast.unparse(loading.mended(textwrap.dedent(source)))
    assert text.count("requires_cuda") == 1


def test_a_test_leaves_the_process_as_it_was():
    import torch

    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)

    def change():
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_grad_enabled(False)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(4)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), state.kept():
        change()
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_default_device() == torch.device("cpu")
    assert torch.is_grad_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.equal(torch.rand(2), expected)


def test_only_what_is_missing_is_run(tmp_path):
    tests = [f"a.py::T.{name}" for name in ("fine", "wrong", "skipped", "sparse", "new")]
    results = Results(tmp_path / "build" / "results.jsonl")
    for test, result in zip(tests[:4], ("ok", "ok", "skip", "ok"), strict=True):
        results.append(Outcome(test, "pytorch", result, apart="mkldnn tensors" if "sparse" in test else None))
    results.append(Outcome(tests[0], "translated", "fail", "ValueError: 1"))
    results.append(Outcome(tests[0], "translated", "ok"))
    results = Results(results.path)
    assert results.wanted(tests, "pytorch", None) == tests[4:]
    assert results.wanted(tests, "pytorch", "pytorch") == tests
    assert results.wanted(tests, "translated", None) == tests[1:2]
    results.append(Outcome(tests[1], "translated", "fail", "ValueError: 1"))
    assert results.wanted(tests, "translated", None) == []
    assert results.wanted(tests, "translated", "failed") == tests[1:2]
    assert results.wanted(tests, "translated", "all") == tests[:2]


def test_the_page_counts(tmp_path):
    results = Results(tmp_path / "results.jsonl")
    results.append(Collected("a.py", 9))
    for n, (result, error) in enumerate([("ok", ""), ("fail", "E: 1|`x`"), ("fail", "E: 2|`x`"), ("late", "")]):
        results.append(Outcome(f"a.py::T.test_{n}", "pytorch", "ok"))
        results.append(Outcome(f"a.py::T.test_{n}", "translated", result, error))
    results.append(Outcome("a.py::T.test_sparse", "pytorch", "ok", apart="mkldnn tensors"))
    results.append(Outcome("a.py::T.test_skipped", "pytorch", "skip"))
    lines = list(page(rows(results)))
    assert "| `a.py` | 9 | 6 | 5 | 1 | 4 | 1 | 25.0 |" in lines
    assert r"| `E: N\|'x'` | 2 | `T.test_1` |" in lines
    assert "6 of 9 tests were tried: all tests of some files, and a sample of the others." in lines
    assert "| `takes too long` | 1 | `T.test_3` |" in lines
    assert "Apart: mkldnn tensors (1)." in lines
    assert not [line for line in lines if "no more" in line]


def test_the_page_tells_of_classes_that_have_ended(tmp_path):
    results = Results(tmp_path / "results.jsonl")
    for n, name in enumerate(("mkldnn tensors", "a former class", "`make_fx`")):
        results.append(Outcome(f"a.py::T.test_{n}", "pytorch", "ok", apart=name))
    lines = list(page(rows(results)))
    assert [line for line in lines if "no more" in line] == [
        "| a former class | no more: tests that wait to be tried again |"
    ]


def test_the_page_keeps_what_had_more_tests_run(tmp_path):
    def written(name, tests, before=""):
        results = Results(tmp_path / name)
        for test, result in tests:
            results.append(Outcome(test, "pytorch", "ok"))
            results.append(Outcome(test, "translated", result, "E: 1"))
        return "\n".join(page(rows(results, before)))

    before = written("before", [("a.py::T.x", "fail"), ("a.py::T.y", "ok"), ("b.py::T.x", "ok")])
    assert written("nothing", [], before) == before
    assert written("fewer", [("a.py::T.x", "ok")], before) == before
    after = written("after", [("a.py::T.x", "ok"), ("a.py::T.y", "ok"), ("c.py::T.x", "ok")], before)
    assert after == written("all", [("a.py::T.x", "ok"), ("a.py::T.y", "ok"), ("b.py::T.x", "ok"), ("c.py::T.x", "ok")])


def test_files_and_samples(tmp_path):
    for name in ("test_b.py", "test_a.py", "__init__.py"):
        (tmp_path / name).touch()
    assert files_of(tmp_path, ["test_b.py", "*.py"]) == ["test_b.py", "test_a.py"]
    assert selected(["a1", "b", "a2", "a3"], "a", 2, 0) == ["a1", "a3"]
    assert selected(["a1", "b", "a2", "a3"], "a", 2, 1) == ["a2"]


PERILOUS = """
    import os, time, unittest, torch

    class TestPerils(unittest.TestCase):
        def test_a_fine(self):
            torch.set_default_dtype(torch.float64)

        def test_b_dtype(self):
            assert torch.ones(1).dtype == torch.float32

        def test_c_ends(self):
            import faulthandler

            faulthandler._sigsegv()

        def test_d_waits(self):
            time.sleep(60)

        def test_d_works(self):
            while True:
                pass

        @unittest.expectedFailure
        def test_e_expected(self):
            assert False

        def test_f_wrong(self):
            assert torch.rand(()) == torch.rand(())
"""


@pytest.mark.slow("starts processes that hang")
def test_a_test_that_ends_or_hangs_its_process_costs_only_itself(tmp_path):
    (tmp_path / "test_perils.py").write_text(textwrap.dedent(PERILOUS))
    options = worker.Options(tmp_path, timeout=1)
    found, names = worker.collect("test_perils.py", options)
    assert found == Collected("test_perils.py", 7)
    outcomes = list(worker.outcomes("test_perils.py", names, "pytorch", options))
    assert [x.result for x in outcomes] == ["ok", "ok", "crash", "late", "late", "skip", "fail"]
    assert "in test_c_ends" in outcomes[2].traceback
    assert outcomes[-1].error == "AssertionError:"
    assert "torch.rand(())" in outcomes[-1].traceback


def _below(limit):
    def sampled():
        set_rng_seed(0)
        assert torch.rand(100).mean() < limit

    return sampled


def _unseeded():
    raise AssertionError


@pytest.mark.parametrize(("sampled", "expected"), [(_below(0.49), True), (_below(0.8), False), (_unseeded, False)])
def test_passing_by_a_seed(sampled, expected):
    before = set_rng_seed
    assert passes_by_its_seed(sampled, sampled) == expected
    assert set_rng_seed is before
