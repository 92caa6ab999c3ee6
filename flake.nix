{
  description = "Run PyTorch code in JAX";

  inputs.nixpkgs.url = "nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
        "aarch64-darwin"
      ];
      forAllSystems = f: nixpkgs.lib.genAttrs systems (system: f nixpkgs.legacyPackages.${system});
      project = (builtins.fromTOML (builtins.readFile ./pyproject.toml)).project;

      torch2jax =
        python:
        python.pkgs.buildPythonPackage {
          pname = project.name;
          version = project.version;
          pyproject = true;
          src = self;
          build-system = [ python.pkgs.hatchling ];
          # With those of the command line.
          dependencies = with python.pkgs; [
            jax
            jaxlib
            ml-dtypes
            numpy
            optree
            rich
            torch
            typer
          ];
          pythonImportsCheck = [ "torch2jax" ];
          meta = {
            description = project.description;
            license = nixpkgs.lib.licenses.asl20;
            mainProgram = "torch2jax";
          };
        };
    in
    {
      packages = forAllSystems (pkgs: {
        default = torch2jax pkgs.python3;
      });

      devShells = forAllSystems (
        pkgs:
        let
          python = pkgs.python3;
          tools = ps: with ps; [
            diffusers
            expecttest
            hypothesis
            matplotlib
            myst-nb
            sphinx-book-theme
            sphinx-copybutton
            sphinx-design
            optax
            pillow
            pytest
            scipy
            timm
            torchvision
            transformers
          ];
        in
        {
          default = pkgs.mkShell {
            packages = [
              (python.withPackages (ps: (torch2jax python).dependencies ++ tools ps))
              pkgs.pre-commit
              pkgs.pyright
              pkgs.ruff
            ];
            shellHook = "export PYTHONPATH=$PWD";
          };
        }
      );
    };
}
