"""Geometry, and networks with symmetries."""

from unittest import mock

import torch

from scripts.uses.use import On, use


@use("kornia", "geometry", "warping images by a homography")
def homography():
    from kornia.geometry.transform import warp_perspective

    matrix = torch.eye(3) + 0.05 * torch.randn(2, 3, 3)
    return lambda image, matrix: warp_perspective(image, matrix, (12, 12)), (torch.rand(2, 3, 16, 16), matrix)


@use("roma", "geometry", "the rotation that aligns points, by Procrustes, as a vector", x64=True)
def procrustes():
    import roma

    x, y = torch.randn(2, 10, 3), torch.randn(2, 10, 3)

    def align(x, y):
        rotation, translation = roma.rigid_points_registration(x, y)
        return roma.rotmat_to_rotvec(rotation), translation

    return align, (x, y)


@use("e3nn", "equivariant networks", "a tensor product with spherical harmonics, gated")
def tensor_product():
    from e3nn import o3

    harmonics = o3.SphericalHarmonics("0e + 1o + 2e", normalize=True)
    product = o3.FullyConnectedTensorProduct("4x0e + 2x1o", "0e + 1o + 2e", "3x0e + 2x1o")
    return On(lambda h, p, x, r: p(x, h(r)), harmonics, product), (torch.randn(6, 10), torch.randn(6, 3))


@use("geoopt", "geometry", "distances and means in the Poincaré ball")
def hyperbolic():
    import geoopt

    ball = geoopt.PoincareBall()

    def f(x, y):
        x, y = ball.expmap0(x), ball.expmap0(y)
        return ball.dist(x, y), ball.mobius_add(x, y), ball.logmap(x, y)

    return f, (torch.randn(5, 3) / 3, torch.randn(5, 3) / 3)


@use(
    "pypose",
    "geometry",
    "points moved by the exponential of twists",
    fails="its tensors are of a subclass of `torch.Tensor`",
)
def twists():
    import pypose

    return lambda twist, points: pypose.se3(twist).Exp().Act(points), (torch.randn(4, 6), torch.randn(4, 3))


@use("pytorch-kinematics", "geometry", "the pose of a robot's hand and its Jacobian")
def kinematics():
    import pytorch_kinematics

    joint = '<joint name="j{0}" type="revolute"><parent link="l{0}"/><child link="l{1}"/><axis xyz="0 {0} 1"/>'
    joint += '<origin xyz="0.3 0 0.1" rpy="0 0.2 0"/><limit lower="-3" upper="3" effort="1" velocity="1"/></joint>'
    links = "".join(f'<link name="l{n}"/>' for n in range(4))
    robot = f'<robot name="r">{links}{"".join(joint.format(n, n + 1) for n in range(3))}</robot>'
    chain = pytorch_kinematics.build_serial_chain_from_urdf(robot, "l3")
    return lambda q: (chain.forward_kinematics(q).get_matrix(), chain.jacobian(q)), (torch.randn(2, 3),)


@use("torch_geometric", "graphs", "attention and convolution on a graph, pooled")
def graph_network():
    from torch_geometric.nn import GATv2Conv, GCNConv, global_mean_pool

    edges, batch = torch.randint(8, (2, 20)), torch.arange(8) // 4

    def run(gat, gcn, x):
        return global_mean_pool(gcn(gat(x, edges).relu(), edges), batch, size=2)

    return On(run, GATv2Conv(5, 4, heads=2, add_self_loops=False), GCNConv(8, 3)), (torch.randn(8, 5),)


@use("torch_geometric", "graphs", "layers over a sparse adjacency matrix (GCN, SAGE, GIN, APPNP)")
def sparse_adjacency():
    from torch_geometric.nn import APPNP, GCNConv, GINConv, SAGEConv
    from torch_geometric.utils import to_torch_csr_tensor

    edges = torch.unique(torch.randint(8, (2, 20)), dim=1)
    adjacency = to_torch_csr_tensor(edges, size=8)

    def run(gcn, sage, gin, appnp, x):
        x = sage(gcn(x, adjacency).relu(), adjacency)
        return appnp(gin(x, adjacency), adjacency)

    gin = GINConv(torch.nn.Linear(4, 3))
    return On(run, GCNConv(5, 4), SAGEConv(4, 4, aggr="max"), gin, APPNP(3, 0.1)), (torch.randn(8, 5),)


@use("torch_geometric", "graphs", "sparse products of values that are learned, and their reductions (spmm)")
def sparse_products():
    from torch_geometric.utils import spmm, to_torch_coo_tensor, to_torch_csr_tensor

    edges = torch.unique(torch.randint(8, (2, 20)), dim=1)

    def f(weights, x):
        csr, coo = (make(edges, weights, size=8) for make in (to_torch_csr_tensor, to_torch_coo_tensor))
        return *[spmm(csr, x, reduce) for reduce in ("sum", "mean", "min", "max")], spmm(coo, x)

    return f, (torch.rand(edges.shape[1]), torch.randn(8, 5))


@use("torch_geometric", "graphs", "messages between the points within a radius, and their attention")
def radius_graph():
    from torch_geometric.nn import GATv2Conv, GCNConv, PointNetConv, global_max_pool
    from torch_geometric.utils import add_self_loops, remove_self_loops, to_undirected

    def f(convolution, attention, points, x, position):
        near = (position[:, None] - position).square().sum(-1) < 1.5
        edges, _ = remove_self_loops(near.nonzero().T)
        edges = to_undirected(edges, num_nodes=len(x))
        x = convolution(x, edges).relu()
        x = attention(x, add_self_loops(edges, num_nodes=len(x))[0])
        return global_max_pool(points(x, position, edges), torch.arange(len(x)) // 5, size=2)

    layers = (
        GCNConv(4, 6),
        GATv2Conv(6, 6, add_self_loops=False),
        PointNetConv(torch.nn.Linear(9, 5), add_self_loops=False),
    )
    return On(f, *layers), (torch.randn(10, 4), torch.randn(10, 3))


@use("egnn-pytorch", "equivariant networks", "a layer for points that keeps their symmetries")
def egnn():
    from egnn_pytorch import EGNN

    return EGNN(dim=8, m_dim=8).eval(), (torch.randn(1, 6, 8), torch.randn(1, 6, 3))


@use("se3-transformer-pytorch", "equivariant networks", "attention of points with their neighbours")
def se3_transformer():
    from se3_transformer_pytorch import SE3Transformer

    model = SE3Transformer(dim=4, heads=1, dim_head=4, depth=1, num_degrees=2, num_neighbors=3, valid_radius=10)
    mask = torch.ones(1, 6, dtype=torch.bool)
    return On(lambda model, f, x: model(f, x, mask, return_type=0), model.eval()), (
        torch.randn(1, 6, 4),
        torch.randn(1, 6, 3),
    )


@use(
    "torchani",
    "force fields",
    "the energy of a molecule",
    fails="the most neighbours of an atom become a Python number by `int(tensor)`; with `.item()` it agrees",
)
def ani():
    return _ani()


@use("torchani", "force fields", "the energy of a molecule and its forces, with `.item()` in place of one `int()`")
def ani_forces():
    import torchani.neighbors

    energy, arguments = _ani()
    number = lambda x: x.item() if isinstance(x, torch.Tensor) else int(x)

    class Replaced(On):
        def forward(self, *args):
            with mock.patch.object(torchani.neighbors, "int", number, create=True):
                return super().forward(*args)

    return Replaced(energy.function, *energy.modules_of), arguments


def _ani():
    from torchani.arch import simple_ani

    model = simple_ani(["H", "C", "O"], lot="wb97x-631gd", ensemble_size=1, repulsion=False)
    species = torch.tensor([[6, 1, 1, 8]])

    def f(model, x):
        return model((species, x)).energies

    return On(f, model), (torch.tensor([[[0.0, 0, 0], [0, 0, 1.1], [0, 1, -0.5], [1.2, 0, 0]]]),)


@use("mace-torch", "force fields", "a block of MACE: products of densities of atoms")
def mace():
    from e3nn import o3
    from mace.modules import EquivariantProductBasisBlock

    features, target = o3.Irreps("4x0e + 4x1o"), o3.Irreps("4x0e + 4x1o")
    block = EquivariantProductBasisBlock(features, target, correlation=2, use_sc=False, num_elements=2)
    kinds = torch.nn.functional.one_hot(torch.tensor([0, 1, 1]), 2).float()
    return On(lambda block, x: block(x, None, kinds), block), (torch.randn(3, 4, 4),)


@use("kornia", "images", "the loss of structure between blurred images, in another space of colours")
def kornia_images():
    import kornia

    def f(x, y):
        x, y = (kornia.filters.gaussian_blur2d(kornia.color.rgb_to_lab(z), (3, 3), (1.0, 1.0)) for z in (x, y))
        return kornia.losses.ssim_loss(x / 100, y / 100, 5)

    return f, (torch.rand(1, 3, 12, 12), torch.rand(1, 3, 12, 12))


@use("kornia", "geometry", "edges and corners of images")
def kornia_features():
    import kornia

    return lambda x: (kornia.filters.sobel(x), kornia.feature.harris_response(x)), (torch.rand(1, 1, 12, 12),)


@use("kornia", "geometry", "a projection of points by a camera, and lines through them")
def kornia_cameras():
    from kornia.geometry import project_points
    from kornia.geometry.conversions import axis_angle_to_rotation_matrix

    camera = torch.tensor([[50.0, 0, 8], [0, 50.0, 8], [0, 0, 1]])

    def f(points, turn):
        turned = points @ axis_angle_to_rotation_matrix(turn).mT + torch.tensor([0.0, 0, 5])
        return project_points(turned, camera.expand(2, 1, 3, 3))

    return f, (torch.randn(2, 6, 3), torch.randn(2, 3))


@use(
    "roma",
    "geometry",
    "interpolation between rotations",
)
def slerp():
    import roma

    steps = torch.linspace(0, 1, 4)
    return lambda a, b: roma.rotvec_slerp(a, b, steps), (torch.randn(3, 3), torch.randn(3, 3))


@use("geoopt", "geometry", "points of a sphere and of Stiefel's manifold")
def manifolds():
    import geoopt

    sphere, stiefel = geoopt.Sphere(), geoopt.Stiefel()

    def f(x, y, z):
        x, y = sphere.projx(x), sphere.projx(y)
        return sphere.dist(x, y), sphere.logmap(x, y), stiefel.proju(torch.eye(4, 2), z)

    return f, (torch.randn(5, 3), torch.randn(5, 3), torch.randn(4, 2))


@use("e3nn", "equivariant networks", "a gated nonlinearity and a linear layer of irreducible parts")
def gate():
    from e3nn import nn, o3

    gate = nn.Gate("4x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o")
    return On(lambda gate, last, x: last(gate(x)), gate, o3.Linear(gate.irreps_out, "3x0e + 1x1o")), (
        torch.randn(5, gate.irreps_in.dim),
    )


@use("torch_geometric", "graphs", "messages over edges with attributes, and a graph's readout")
def edge_messages():
    from torch_geometric.nn import GINEConv, SAGEConv, global_add_pool

    edges, batch = torch.randint(8, (2, 20)), torch.arange(8) // 4

    def f(gine, sage, x, e):
        return global_add_pool(sage(gine(x, edges, e).relu(), edges), batch, size=2)

    return On(f, GINEConv(torch.nn.Linear(5, 6), edge_dim=3), SAGEConv(6, 4)), (torch.randn(8, 5), torch.randn(20, 3))


@use("smplx", "geometry", "linear blend skinning of a body with shape and pose")
def skinned_body():
    from smplx.lbs import lbs

    vertices, joints = 10, 3
    template, shapes = torch.randn(vertices, 3), torch.randn(vertices, 3, 4) / 10
    poses, weights = torch.randn((joints - 1) * 9, vertices * 3) / 10, torch.randn(vertices, joints).softmax(-1)
    of_joints, parents = torch.randn(joints, vertices).softmax(-1), torch.tensor([-1, 0, 1])

    def f(shape, pose):
        return lbs(shape, pose, template, shapes, poses, of_joints, parents, weights)

    return f, (torch.randn(2, 4), torch.randn(2, 9))
