"""Sparse tensors around calls: as state, arguments and results, with gradients from inside, and their refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import sparse

from torch2jax import CompressedArray, NoRuleError, j2t, t2j

from .table import DENSE, LAYOUTS, sparse_of

X = torch.linspace(-1, 1.5, 18).reshape(6, 3)
KINDS = {"coo": sparse.BCOO, "uncoalesced": sparse.BCOO, "csr": sparse.BCSR}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_there_and_back(layout):
    matrix = sparse_of(layout)
    array = t2j({"matrix": matrix})["matrix"]
    assert type(array) is KINDS.get(layout, CompressedArray)
    back = j2t([array])[0]
    assert back.layout is matrix.layout
    assert back._nnz() == matrix._nnz()
    np.testing.assert_array_equal(back.to_dense(), matrix.to_dense())


def test_what_pads_a_bcoo_is_no_element():
    padded = sparse.BCOO.fromdense(jnp.asarray(DENSE), nse=12)
    assert j2t(padded)._nnz() == 7
    program = lambda m, x: (
        m @ x,
        m.to_dense(),
        torch.sparse.sum(m, 1).to_dense(),
        m.to_sparse_csr() @ x,
        m.sin().sum(),
    )
    for run in (t2j(program), jax.jit(t2j(program))):
        for found, wanted in zip(run(padded, jnp.asarray(X)), program(DENSE.to_sparse(), X), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


class Graph(torch.nn.Module):
    def __init__(self, layout: str):
        super().__init__()
        self.register_buffer("adjacency", sparse_of(layout))
        self.other = sparse_of(layout)
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.adjacency @ self.linear(x) + (self.other * 2) @ self.linear(x)


@pytest.mark.parametrize("layout", ["coo", "uncoalesced", "csr"])
def test_a_module_holds_some(layout):
    module = Graph(layout)
    function = t2j(module)
    params, buffers = function.split()
    assert set(buffers) == {"adjacency"}
    x, expected = jnp.asarray(X), module(X).detach()
    np.testing.assert_allclose(function(x), expected, rtol=1e-5, atol=1e-6)
    jitted = jax.jit(function)
    np.testing.assert_allclose(jitted(x, state_dict=params | buffers), expected, rtol=1e-5, atol=1e-6)
    result, state = function(x, state_dict=t2j(module.state_dict()), return_state_dict=True)
    assert type(state["adjacency"]) is KINDS[layout]
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    batch = jax.vmap(function)(jnp.stack([x, 2 * x]))
    np.testing.assert_allclose(batch[0], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(TypeError, match=r"layout torch\.sparse_.*wanted a sparse array"):
        function(x, state_dict={"adjacency": jnp.ones((4, 6))})


@pytest.mark.parametrize("layout", ["coo", "uncoalesced", "csr", "csc", "bsr"])
def test_gradients_from_inside(layout):
    def program(x):
        matrix = sparse_of(layout).requires_grad_()
        (matrix @ x).sin().sum().backward()
        return matrix.grad.to_dense()

    dense = DENSE.clone().requires_grad_()
    (dense @ X).sin().sum().backward()
    marks = torch.ones(4, 6).sparse_mask(sparse_of("coo" if layout == "uncoalesced" else layout)).to_dense()
    for run in (t2j(program), jax.jit(t2j(program))):
        np.testing.assert_allclose(run(jnp.asarray(X)), dense.grad * marks, rtol=1e-5, atol=1e-5)


def test_a_leaf_from_outside_has_its_gradient_inside():
    matrix = sparse_of("coo").requires_grad_()

    def program(x):
        torch.sparse.mm(matrix, x).square().sum().backward()
        gradient = torch.autograd.grad((matrix @ x).sum(), matrix)[0]
        return matrix.grad.coalesce().values(), gradient.to_dense()

    wanted = DENSE.clone().requires_grad_()
    (wanted @ X).square().sum().backward()
    values, gradient = jax.jit(t2j(program))(jnp.asarray(X))
    np.testing.assert_allclose(values, wanted.grad[DENSE != 0], rtol=1e-5)
    np.testing.assert_allclose(gradient, X.sum(1).expand(4, 6) * (DENSE != 0), rtol=1e-5, atol=1e-6)
    assert matrix.grad is None


def test_coalescing_traced_indices_keeps_room():
    def program(indices, values, x):
        matrix = torch.sparse_coo_tensor(indices, values, (4, 6)).coalesce()
        return matrix._nnz(), matrix @ x, matrix.sin().to_dense(), matrix.values().sum(), matrix

    indices, values = torch.tensor([[3, 1, 3, 0], [2, 0, 2, 5]]), torch.tensor([1.0, 2, 3, 4])
    wanted = torch.sparse_coo_tensor(indices, values, (4, 6)).coalesce()
    nnz, product, sines, total, result = jax.jit(t2j(program))(*map(jnp.asarray, (indices, values, X)))
    assert nnz == 3
    assert total == 10
    np.testing.assert_allclose(product, wanted @ X, rtol=1e-6)
    np.testing.assert_allclose(sines, wanted.sin().to_dense(), rtol=1e-6)
    assert j2t(result)._nnz() == 3
    np.testing.assert_array_equal(j2t(result).indices(), wanted.indices())


def test_batches_and_dense_dimensions():
    batch = torch.stack([DENSE, 2 * DENSE])
    hybrid = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2, 3), (4, 3), is_coalesced=True)

    def program(x):
        return torch.bmm(batch.to_sparse(), x), hybrid.to_dense(), hybrid.sum(0)

    x = torch.stack([X, -X])
    for found, wanted in zip(jax.jit(t2j(program))(jnp.asarray(x)), program(x), strict=True):
        found = j2t(found)
        assert found.layout is wanted.layout
        found, wanted = (each if each.layout is torch.strided else each.to_dense() for each in (found, wanted))
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_writes_in_place():
    def program(x):
        matrix = DENSE.to_sparse()
        alias = matrix
        matrix.mul_(2)
        matrix.add_(DENSE.to_sparse())
        matrix *= x[0, 0]
        total = torch.zeros(4, 6)
        total.add_(alias)
        return total

    np.testing.assert_allclose(jax.jit(t2j(program))(jnp.asarray(X)), program(X), rtol=1e-6)


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (lambda m, x: torch.cos(m), NoRuleError, r"torch\.cos of a tensor of layout torch\.sparse_csr.*to_dense"),
        (lambda m, x: m.to_sparse_bsr((2, 3)), RuntimeError, "close over the sparse tensor"),
        (lambda m, x: m.to_sparse_coo().index_select(0, torch.tensor([1, 1])), RuntimeError, "place more than once"),
        (lambda m, x: m.to_sparse_coo().index_select(0, x[:, 0]), RuntimeError, "Expected dtype int32 or int64"),
        (lambda m, x: m.mv(x), RuntimeError, "vec"),
        (lambda m, x: m.to_sparse_coo().sparse_resize_((5, 6), 2, 0), NoRuleError, "to_dense"),
        (lambda m, x: m.resize_(5, 6), NoRuleError, "to_dense"),
        (lambda m, x: m.fill_(2), NoRuleError, "to_dense"),
        (lambda m, x: m.mean(), NoRuleError, "to_dense"),
        (lambda m, x: m.index_select(0, torch.tensor([1])), RuntimeError, "to_sparse_coo"),
        (lambda m, x: m.to_sparse_coo()[1:3], NotImplementedError, "narrow_copy"),
        (lambda m, x: torch.bmm(torch.ones(2, 3, 4), torch.ones(2, 4, 6).to_sparse()), RuntimeError, "in this order"),
        (lambda m, x: torch._sparse_csr_prod(m, (0,), True), NoRuleError, "to_dense"),
        (lambda m, x: torch.sparse.softmax(x, 0), NoRuleError, "softmax"),
        (lambda m, x: torch.ones(2, 4, 6).to_sparse_csr(), RuntimeError, "wanted a matrix: .*to_sparse_coo"),
        (lambda m, x: torch.ones(4, 6, 2).to_sparse_bsr((2, 3), dense_dim=1), RuntimeError, "wanted a matrix"),
        (lambda m, x: torch.sparse_csr_tensor([[0, 1]], [[0]], [[1.0]], (1, 1, 1)), RuntimeError, "wanted a matrix"),
        (lambda m, x: m.to_sparse_coo()[2].unsqueeze(0) * torch.ones(4, 6), RuntimeError, "broadcast .*to_dense"),
        (lambda m, x: torch.sin(m, out=m.clone()), NotImplementedError, "take what the function gives"),
        (lambda m, x: torch.mm(m, x, out=torch.zeros(1, 3)), NotImplementedError, "take what the function gives"),
        (lambda m, x: m.to_sparse_coo().norm(dim=0), RuntimeError, "only supports full reductions"),
        (lambda m, x: torch.sparse.sampled_addmm(m.to_sparse_csc(), x[:4], x.t()), RuntimeError, "to_sparse_csr"),
        (lambda m, x: torch.sparse_csr_tensor(x[0], x[1], x[1], (2, 3)), RuntimeError, "must be Int or Long"),
        (lambda m, x: m.__setitem__(0, 1.0), TypeError, "Cannot assign to a sparse tensor"),
        (lambda m, x: x.is_coalesced(), RuntimeError, "coordinate tensor layout but got Strided"),
        (lambda m, x: x.to_sparse(blocksize=(2, 3)), RuntimeError, "takes no blocksize"),
        (lambda m, x: m.to_sparse_coo().coalesce()[0, 0, 0], IndexError, "too many indices"),
        (lambda m, x: m + 1, RuntimeError, "elements everywhere"),
        (lambda m, x: m @ x.t(), RuntimeError, "cannot be multiplied"),
        (lambda m, x: m.stride(), RuntimeError, "strides"),
        (lambda m, x: m.indices(), RuntimeError, "indices expected sparse coordinate tensor layout but got SparseCsr"),
        (lambda m, x: x.crow_indices(), RuntimeError, "expected sparse row compressed tensor layout but got Strided"),
        (lambda m, x: x.values(), RuntimeError, "expected sparse tensor layout but got Strided"),
        (lambda m, x: torch.isclose(x, m.to_sparse_coo()), NoRuleError, "layout torch.sparse_coo.*to_dense"),
        (lambda m, x: m == 0, NoRuleError, "to_dense"),
        (lambda m, x: 0 < m, NoRuleError, "to_dense"),
        (lambda m, x: m.to_sparse_coo()[..., 0], NotImplementedError, "to_dense"),
        (lambda m, x: m.to_sparse_coo()[None, 0, 0], NotImplementedError, "to_dense"),
        (lambda m, x: torch.tensor(2.0).to_sparse() * m.to_sparse_coo(), RuntimeError, "broadcast .*to_dense"),
        (lambda m, x: m.register_hook(lambda gradient: gradient), NoRuleError, "to_dense"),
        (lambda m, x: m.detach_(), NoRuleError, "to_dense"),
        (lambda m, x: torch.triangular_solve(x, m), NoRuleError, "to_dense"),
        (lambda m, x: m.int().asin_(), RuntimeError, "result type Float can't be cast to the desired output type Int"),
        (lambda m, x: torch.empty_like(m, layout=torch.sparse_csc), RuntimeError, "wanted the same one: convert"),
        (lambda m, x: torch.randn_like(m.to_sparse_coo()), NotImplementedError, "randn_like"),
        (lambda m, x: m.clone().copy_(x), RuntimeError, "different layouts.*SparseCsr .* src layout is Strided"),
        (lambda m, x: m.clone().copy_(torch.zeros_like(m)), RuntimeError, "same number of specified elements"),
        (lambda m, x: x.to_sparse_bsr((2, 3)), TypeError, "number of elements that are not zero"),
        (lambda m, x: torch.sparse_coo_tensor(torch.tensor([[7]]), x[0, :1], (3,)), RuntimeError, "found index 7"),
        (lambda m, x: m.numpy(), TypeError, "to_dense"),
    ],
)
def test_refusals(function, error, words):
    with pytest.raises(error, match=words):
        jax.jit(t2j(function))(t2j(sparse_of("csr")), jnp.asarray(X))


def test_random_elements_at_the_same_places():
    matrix = jax.jit(t2j(lambda m: torch.randn_like(m)))(t2j(sparse_of("csr")), rng=jax.random.key(0))
    assert np.array_equal(matrix.indices, sparse_of("csr").col_indices())
    assert len(np.unique(matrix.data)) == 7


def test_dtypes_of_indices_and_results():
    matrix = sparse_of("csr")
    small = torch.sparse_csr_tensor(matrix.crow_indices().int(), matrix.col_indices().int(), matrix.values(), (4, 6))

    def kinds():
        blocks, columns = small.to_sparse_bsr((2, 3)), small.to_sparse_csc()
        return (
            *(blocks.crow_indices().dtype, columns.row_indices().dtype, small.to_sparse_coo().indices().dtype),
            *(matrix.to_sparse_csc().row_indices().dtype, torch.select_copy(matrix, 0, 2).layout),
            torch.tensor([0, 200, 100], dtype=torch.uint8).to_sparse().select(0, 1).dtype,
            (torch.ones(2, 3).dense_dim(), torch.ones(2, 3).sparse_dim(), small.dense_dim()),
        )

    found = []
    t2j(lambda: found.append(kinds()))()
    assert found == [kinds()]


@pytest.mark.parametrize("layout", ["csr", "bsr"])
def test_compressed_layouts_have_two_sparse_dimensions(layout):
    def convert():
        tensor = torch.ones(2, 2, 2).to_sparse()
        return getattr(tensor, f"to_sparse_{layout}")(*[(1, 1)] * (layout == "bsr"))

    for run in (convert, t2j(convert)):
        with pytest.raises(RuntimeError, match="for input tensors with sparse_dim"):
            run()


@pytest.mark.parametrize("layout", ["coo", "csr"])  # PyTorch's engine takes no gradients of the others
def test_gradients_of_sparse_outputs(layout):
    matrix = sparse_of(layout)
    full = torch.arange(24.0).reshape(4, 6)

    def program(given):
        leaf = matrix.detach().clone().requires_grad_()
        (leaf * 3).backward(given(leaf.detach()))
        return leaf.grad.to_dense()

    for given in (lambda leaf: leaf * 2, full.sparse_mask):
        found = jax.jit(t2j(lambda given=given: program(given)))()
        np.testing.assert_allclose(found, program(given), rtol=1e-6)


def _padded(layout: str):
    """The sparse array with room for three elements more."""
    array = t2j(sparse_of(layout))
    data = jnp.concatenate([array.data, jnp.zeros(3)])
    if isinstance(array, sparse.BCSR):
        columns = jnp.concatenate([array.indices, jnp.zeros(3, array.indices.dtype)])
        return sparse.BCSR((data, columns, array.indptr), shape=array.shape)
    beyond = jnp.tile(jnp.array([array.shape], array.indices.dtype), (3, 1))
    facts = {"indices_sorted": array.indices_sorted, "unique_indices": array.unique_indices}
    return sparse.BCOO((data, jnp.concatenate([array.indices, beyond])), shape=array.shape, **facts)


# What computes something of zeros, moves places, or counts.
OF_PADDED = {
    "pow": lambda m, x: m.to_sparse_coo().pow(-1).sum(),
    "sum of a softmax": lambda m, x: torch.sparse.softmax(m.to_sparse_coo(), 1).sum(),
    "sum of a log_softmax": lambda m, x: torch.sparse.log_softmax(m.to_sparse_coo(), 1).sum(),
    "sum of masked ones": lambda m, x: (x[:4] @ x.t()).sparse_mask(m).sum(),
    "sum of sampled ones": lambda m, x: torch.sparse.sampled_addmm(m.to_sparse_csr(), x[:4], x.t(), beta=0.5).sum(),
    "softmax": lambda m, x: torch.sparse.softmax(m.to_sparse_coo(), 1).to_dense(),
    "cat": lambda m, x: torch.cat([m.to_sparse_coo()] * 2, 0).to_dense(),
    "to_sparse_csc": lambda m, x: m.to_sparse_csc().to_dense(),
    "amax": lambda m, x: torch.sparse.mm(m.to_sparse_csr(), x, "amax"),
    "a part": lambda m, x: m.to_sparse_coo().narrow_copy(0, 1, 2).to_dense(),
    "a row": lambda m, x: m.to_sparse_coo()[2].to_dense(),
    "columns": lambda m, x: m.to_sparse_coo().index_select(1, torch.tensor([4, 1])).to_dense(),
    "square": lambda m, x: (m @ m.t()).to_dense(),
    "counts": lambda m, x: torch.tensor(
        [
            each._nnz()
            for whole in [m.to_sparse_coo().t().coalesce()]
            for each in (
                whole,
                whole.t(),
                whole.narrow_copy(0, 0, 2),
                whole.to_sparse_csr(),
                torch.cat([whole, whole]),
                m @ m.t(),
            )
        ]
    ),
}


@pytest.mark.parametrize("layout", ["coo", "uncoalesced", "csr"])
def test_what_pads_counts_nowhere(layout):
    program = lambda m, x: {name: run(m, x) for name, run in OF_PADDED.items()}
    expected = program(sparse_of(layout), X)
    for run in (t2j(program), jax.jit(t2j(program))):
        found = run(_padded(layout), jnp.asarray(X))
        for name, wanted in expected.items():
            np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_values_of_a_row_come_first(layout):
    found = jax.jit(t2j(lambda m: m[2].coalesce().values()))(t2j(sparse_of(layout)))
    assert found.length == 3
    np.testing.assert_array_equal(found.values[:3], [0.5, 0.25, 3.0])


def test_what_pads_has_a_gradient_of_zero():
    def loss(data, m, x):
        m = sparse.BCOO((data, m.indices), shape=m.shape)
        program = lambda m, x: torch.sparse.softmax(m, 1).to_dense().square().sum() + (m.pow(3) @ x).sum()
        return t2j(program)(m, x)

    padded = _padded("coo")
    found = jax.jit(jax.grad(loss))(padded.data, padded, jnp.asarray(X))
    wanted = jax.grad(loss)(padded.data[:7], t2j(sparse_of("coo")), jnp.asarray(X))
    np.testing.assert_allclose(found, [*wanted, 0, 0, 0], rtol=1e-5)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_elements_of_a_traced_tensor(layout):
    def program(x):
        found = getattr(x.relu(), f"to_sparse_{layout}")()
        return found._nnz(), found, found.values().sum()

    for bounds in (None, {"test_sparse.py:program": 12}):
        nnz, found, total = jax.jit(t2j(program, bounds=bounds))(jnp.asarray(X))
        values = found.values if layout == "csc" else found.data
        assert values.shape == (18 if bounds is None else 12,)
        assert nnz == 11
        assert j2t(found)._nnz() == 11
        np.testing.assert_array_equal(j2t(found).to_dense(), X.relu())
        np.testing.assert_allclose(total, X.relu().sum(), rtol=1e-6)
    slopes = jax.jit(jax.grad(t2j(lambda x: (x.relu().to_sparse() @ x.t()).sum())))(jnp.asarray(X))
    leaf = X.clone().requires_grad_()
    (leaf.relu() @ leaf.t()).sum().backward()
    np.testing.assert_allclose(slopes, leaf.grad, rtol=1e-5, atol=1e-5)
    _, _, total = jax.jit(t2j(program, bounds={"test_sparse.py:program": 3}))(jnp.asarray(X))
    assert np.isnan(total)  # a bound that is too small


def test_details_as_in_pytorch():
    hybrid = torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.arange(12.0).reshape(2, 2, 3), (2, 2, 3))
    csr = sparse_of("csr")

    def program():
        empty, number = torch.sparse_coo_tensor((3, 4)), torch.full((), 2.0).to_sparse()
        one = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1), (3,))
        numbers = torch.ones(()).to_sparse()
        return (
            *(empty.is_coalesced(), one.is_coalesced(), empty._coalesced_(False).is_coalesced()),
            *((number * 3).to_dense().item(), number.mul_(csr.sum()).to_dense().item()),
            *((numbers + numbers).to_dense().item(), (numbers * numbers).to_dense().item()),
            *(hybrid[0, 0, 1].item(), hybrid[1, 1].tolist()),
            *(csr.to_sparse_coo().type(), csr.type(torch.float64).dtype, hybrid.permute(dims=(0, 2, 1)).shape),
            *(hybrid.new(2, 3).layout, hybrid.new(torch.tensor([[1]]), torch.ones(1), (3,)).to_dense().tolist()),
            *(torch.ones(()).to_sparse().permute(()).shape, torch.sparse_coo_tensor((2, 3)).permute(1, 0).shape),
        )

    found = []
    t2j(lambda: found.append(program()))()
    assert found == [program()]


@pytest.mark.parametrize("out_int32", [False, True])
def test_where_rows_begin(out_int32):
    """torch_geometric makes its matrices of that."""
    rows = torch.tensor([0, 0, 2, 3, 3, 3])
    convert = torch._convert_indices_from_coo_to_csr
    begin = lambda rows: convert(rows, 5, out_int32=out_int32)
    wanted = begin(rows)
    for run in (t2j(begin), jax.jit(t2j(begin))):
        np.testing.assert_array_equal(run(t2j(rows)), wanted)
    of_known = t2j(lambda x: (x + begin(rows), begin(rows).dtype == wanted.dtype))
    found, is_alike = of_known(jnp.zeros(6))
    np.testing.assert_array_equal(found, wanted.float())
    assert is_alike


def test_invariants_are_checked_where_that_is_asked():
    def build(check_invariants):
        parts = torch.tensor([0, 1, 2]), torch.tensor([1, 5]), torch.ones(2)
        return torch.sparse_csr_tensor(*parts, (2, 2), check_invariants=check_invariants)

    for run in (build, lambda asked: t2j(lambda: build(asked) is None)()):
        run(False)
        with pytest.raises(RuntimeError, match=r"^`0 <= col_indices < ncols` is not satisfied"):
            run(True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_element_of_bools(layout):
    matrix = sparse_of(layout, DENSE != 0) if layout != "uncoalesced" else (DENSE != 0).to_sparse()
    for run in (t2j, lambda f: jax.jit(t2j(f))):
        found = run(lambda: (matrix[0, 1], matrix[1, 0]))()
        assert [bool(x) for x in found] == [True, False]
        assert all(x.dtype == bool for x in found)


@pytest.mark.parametrize("masked", [False, True])
def test_pytorchs_own_check_of_gradients(masked):
    matrix = torch.tensor([[0.0, 1.5], [2.0, 0]], dtype=torch.float64).to_sparse_csr()
    other = torch.tensor([[0.5], [-1.0]], dtype=torch.float64)
    check = torch.sparse.as_sparse_gradcheck(torch.autograd.gradcheck)

    def f():
        operands = matrix.clone().requires_grad_(), other.clone().requires_grad_()
        assert check(torch.sparse.mm, operands, masked=masked)

    with jax.enable_x64(True):
        t2j(f)()


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr"])
def test_they_are_printed_by_their_parts(layout):
    matrix, texts = sparse_of(layout), []
    t2j(lambda: texts.append(f"{matrix * 1}"))()
    names = {"coo": ("indices",), "csc": ("ccol_indices", "row_indices")}.get(layout, ("crow_indices", "col_indices"))
    assert all(f"{name}=tensor([" in texts[0] for name in (*names, "values"))
    assert f"size=(4, 6), nnz={matrix._nnz()}, layout=torch.sparse_{layout}" in texts[0]
    known = jax.jit(t2j(lambda x: texts.append(f"{torch.eye(2).to_sparse() * x}") or x))
    known(jnp.ones(()))
    assert "values=tensor(<traced>, shape=(2,)" in texts[1]


def test_what_is_copied_is_its_own():
    index = torch.tensor([[0, 1], [1, 0]])

    def copied(one, other):
        one, other = (
            torch.sparse_coo_tensor(index, values, (2, 2)) for values in (one, other.clone().requires_grad_())
        )
        one.copy_(other)
        (one * 2).to_dense().sum().backward()
        with torch.no_grad():
            one._values().mul_(5)
        return one.to_dense().detach(), other.to_dense().detach(), one.is_leaf

    expected = copied(torch.ones(2), torch.full((2,), 2.0))
    for run in (t2j(copied), jax.jit(t2j(copied))):
        found = run(jnp.ones(2), jnp.full(2, 2.0))
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1], expected[1])
        assert not found[2]


@pytest.mark.parametrize("by_backward", [True, False])
def test_sparse_gradients_are_given_for_strided_tensors(by_backward):
    def function(x):
        leaf = x.clone().requires_grad_()
        given = torch.eye(6, 3).to_sparse()
        if by_backward:
            (leaf * leaf).backward(given)
            return leaf.grad
        return torch.autograd.grad(leaf * leaf, leaf, given)[0]

    for call in (t2j(function), jax.jit(t2j(function))):
        np.testing.assert_allclose(call(X.numpy()), function(X).to_dense())


def test_hooks_that_make_a_gradient_sparse_are_refused():
    def function(x):
        leaf = x.clone().requires_grad_()
        leaf.register_hook(lambda gradient: gradient.to_sparse())
        (leaf * 2).sum().backward()
        return leaf.grad

    for call in (lambda x: function(torch.from_numpy(x)), t2j(function), jax.jit(t2j(function))):
        with pytest.raises(RuntimeError, match="has changed the type of"):
            call(X.numpy())


def test_jaxs_older_sparse_arrays_are_refused():
    array = sparse.CSR.fromdense(jnp.eye(2))
    with pytest.raises(TypeError, match=r"got a CSR.*wanted a BCOO or BCSR"):
        j2t(array)


def test_checks_of_parts_and_types():
    def f(x):
        s = x.to_sparse_csr()
        torch._validate_sparse_compressed_tensor_args(s.crow_indices(), s.col_indices(), s.values(), s.shape, s.layout)
        c = s.to_sparse_coo()
        torch._validate_sparse_coo_tensor_args(c.indices(), c.values(), c.shape)
        assert torch.result_type(s, 2.5) is torch.result_type(2, c) is torch.float32
        with pytest.raises(RuntimeError, match="negative index -1"):
            torch._validate_sparse_coo_tensor_args(torch.tensor([[0], [-1]]), torch.ones(1), (2, 2))
        parts = torch.tensor([1, 1, 1]), torch.tensor([0]), torch.ones(1)
        with pytest.raises(RuntimeError, match="crow_indices"):
            torch._validate_sparse_compressed_tensor_args(*parts, (2, 2), torch.sparse_csr)
        return s.to_dense()

    x = torch.tensor([[0.0, 2.0], [1.0, 0.0]])
    np.testing.assert_array_equal(t2j(lambda: f(x))(), x)
