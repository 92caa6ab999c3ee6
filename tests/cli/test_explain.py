"""``torch2jax explain``: its tree."""

import json

from torch import nn

from .test_cli import run


def make():
    layers = [nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(*layers, nn.Linear(8, 2))


SPEC = (f"{__name__}:make", "--shape", "4,8")


def test_tree():
    result = run("explain", *SPEC)
    assert result.exit_code == 0, result.output
    names = [
        line.split("  ")[0] if line[0] != " " else line.strip().split("  ")[0]
        for line in result.stdout.splitlines()[3:]
    ]
    assert names == ["total", "0 … 2, each", "0", "1", "3", "linear"]
    assert len(run("explain", *SPEC, "--depth", "1").stdout.splitlines()) == 6
    assert len(run("explain", *SPEC, "--depth", "0").stdout.splitlines()) > 9


def test_json():
    record = json.loads(run("explain", *SPEC, "--json", "--compile").stdout)
    assert [scope["name"] for scope in record["scopes"]] == ["0", "1", "2", "3"]
    assert record["scopes"][0]["scopes"][0]["class"] == "Linear"
    assert record["total"]["flops"] == sum(scope["flops"] for scope in record["scopes"])
    assert record["compiled"]["temporary"] >= 0


def test_exit_codes():
    assert run("explain", "tests.cli.test_cli:unknown", "--shape", "3").exit_code == 3
    assert run("explain", *SPEC[:1], "--shape", "3,3").exit_code == 2
