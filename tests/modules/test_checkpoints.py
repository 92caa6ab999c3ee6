"""Weights from files, on the devices that are to have them, and back."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec as P
from torch import nn

from torch2jax import j2t, load_state, stack_layers, t2j
from torch2jax.modules import checkpoints

st = pytest.importorskip("safetensors.torch")


def weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "matrix": torch.randn(4, 6),
        "half": torch.randn(8).to(torch.bfloat16),
        "eighth": torch.randn(2, 2).to(torch.float8_e4m3fn),
        "counter": torch.tensor(2**30),
        "mask": torch.tensor([True, False]),
        "empty": torch.zeros(0, 3),
        "complex": torch.randn(3, dtype=torch.complex64),
        "double": torch.randn(3, dtype=torch.float64),
    }


def save(folder, kind: str):
    """The weights as files of one kind, and what `load_state` is given."""
    state, path = weights(), folder / f"model.{kind}"
    if kind == "safetensors":
        st.save_file(state, path)
    elif kind in ("pt", "bin"):
        torch.save(state, path)
    elif kind == "mapping":
        return state
    else:
        names = list(state)
        parts = {"model-1.safetensors": names[:3], "model-2.safetensors": names[3:]}
        for file, physical in parts.items():
            st.save_file({name: state[name] for name in physical}, folder / file)
        index = {"weight_map": {name: file for file, physical in parts.items() for name in physical}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder if kind == "folder" else folder / "model.safetensors.index.json"
    return path


def check(state: dict[str, jax.Array], dtype=None) -> None:
    expected = t2j(weights())
    assert set(state) == set(expected)
    for name, array in expected.items():
        if dtype is not None and jnp.issubdtype(array.dtype, jnp.floating):
            array = jnp.asarray(array, dtype)
        assert state[name].dtype == array.dtype, name
        assert state[name].shape == array.shape
        assert np.array_equal(np.asarray(state[name]), np.asarray(array)), name


@pytest.mark.parametrize("kind", ["safetensors", "pt", "bin", "mapping", "index", "folder"])
def test_weights(tmp_path, kind):
    source = save(tmp_path, kind)
    check(load_state(source))
    check(load_state(source, dtype=jnp.bfloat16), jnp.bfloat16)


def test_dtypes_by_their_names_in_pytorch(tmp_path):
    check(load_state(save(tmp_path, "safetensors"), dtype=torch.float16), jnp.float16)
    with pytest.raises(TypeError, match="to which no weights can be cast"):
        load_state(save(tmp_path, "safetensors"), dtype=torch.int8)


@pytest.mark.parametrize("kind", ["safetensors", "pt", "mapping"])
def test_nothing_is_shared(tmp_path, kind):
    """The file may be written anew, and the module trained on."""
    source = save(tmp_path, kind)
    state = load_state(source)
    if kind == "mapping":
        for tensor in source.values():
            tensor.zero_()
    else:
        with source.open("r+b") as file:
            file.write(bytes(source.stat().st_size))
    check(state)


def test_file_of_an_old_format(tmp_path):
    torch.save({"w": torch.ones(2, 3)}, tmp_path / "model.pt", _use_new_zipfile_serialization=False)
    assert (load_state(tmp_path / "model.pt")["w"] == np.ones((2, 3))).all()


@pytest.mark.parametrize("kind", ["safetensors", "pt", "folder"])
def test_shards(tmp_path, kind, monkeypatch, eight_devices):
    """Each device gets its own part; the whole of a weight is never in memory."""
    source = save(tmp_path, kind)
    mesh = jax.make_mesh((2, 2), ("x", "y"), devices=jax.devices()[:4])
    plan = {"matrix": NamedSharding(mesh, P("x", "y")), "half": P("y"), "not there": P("x"), "mask": None}
    copied, fill = [], checkpoints._fill
    monkeypatch.setattr(
        checkpoints, "_fill", lambda memory, array: (copied.append(array.shape), fill(memory, array))[1]
    )
    with jax.set_mesh(mesh):
        state = load_state(source, shardings=plan)
    check(state)
    assert state["matrix"].sharding == plan["matrix"]
    assert state["matrix"].addressable_shards[0].data.shape == (2, 3)
    assert copied.count((2, 3)) == 4
    assert (4, 6) not in copied
    assert state["half"].sharding == NamedSharding(mesh, P("y"))
    assert len(state["mask"].sharding.device_set) == 1
    state = load_state(source, shardings=NamedSharding(mesh, P()))
    check(state)
    assert all(len(array.sharding.device_set) == 4 for array in state.values())


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "content", "error", "message"),
        [
            ("none.safetensors", None, FileNotFoundError, "no such file"),
            ("model.onnx", b"", ValueError, "wanted .safetensors, .bin, .pt, .pth"),
            ("list.pt", [torch.ones(1)], TypeError, "got list in"),
            ("nested.pt", {"epoch": 3, "model": {}}, TypeError, "got int under 'epoch'"),
        ],
    )
    def test_files(self, tmp_path, name, content, error, message):
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content is not None:
            torch.save(content, path)
        with pytest.raises(error, match=message):
            load_state(path)

    def test_folder_without_weights(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"wanted one of model\.safetensors\.index\.json"):
            load_state(tmp_path)

    def test_partition_without_mesh(self):
        with pytest.raises(ValueError, match=r"a mesh set with jax.set_mesh"):
            load_state({"w": torch.ones(2)}, shardings=P("x"))

    def test_without_its_library(self, tmp_path, monkeypatch):
        path = save(tmp_path, "safetensors")
        monkeypatch.setitem(sys.modules, "safetensors", None)
        with pytest.raises(ModuleNotFoundError, match=r"'\.\[checkpoints\]'"):
            load_state(path)


def test_from_and_to_orbax(tmp_path):
    """Orbax saves what `load_state` gives, and restores it to other shards."""
    ocp = pytest.importorskip("orbax.checkpoint")
    net = nn.Linear(3, 4)
    state = load_state(net.state_dict())
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", state)
        checkpointer.wait_until_finished()
        sharding = NamedSharding(jax.make_mesh((1,), ("x",)), P("x"))
        wanted = {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for name, x in state.items()}
        restored = checkpointer.restore(tmp_path / "saved", wanted)
    assert restored["weight"].sharding == sharding
    other = nn.Linear(3, 4)
    other.load_state_dict(j2t(restored))
    assert torch.equal(other.weight, net.weight)
    assert torch.equal(other.bias, net.bias)


class Layered(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))


def test_layers_are_stacked(eight_devices):
    state = Layered().state_dict()
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    shardings = {name: NamedSharding(mesh, P("x")) for name in state if "weight" in name and "layers" in name}
    got, want = stack_layers(load_state(state, shardings=shardings)), stack_layers(t2j(state))
    assert got.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)
    assert got["layers.*.weight"].sharding.spec == P(None, "x")
    with pytest.raises(TypeError, match="unexpected keyword argument 'layers'"):
        load_state(state, layers="stacked")
