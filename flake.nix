{
  description = "Repromatrix: in which JAX, CUDA and NCCL versions does a script fail, how, and since when";

  # nixos-25.11 as it stood on 2026-05-18; docs/nix.md says how to take another.
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/687f05a9184cad4eaf905c48b63649e3a86f5433";

  outputs = { nixpkgs, ... }:
    let
      locks = import ./nix/locks.nix ./containers/locks;

      each = make: builtins.listToAttrs (map
        (system: { name = system; value = make nixpkgs.legacyPackages.${system}; })
        [ "x86_64-linux" "aarch64-linux" ]);

      locksFor = pkgs:
        builtins.filter (lock: lock.system == pkgs.stdenv.hostPlatform.system) (builtins.attrValues locks);

      tools = pkgs: [
        pkgs.python3 pkgs.uv pkgs.docker-client pkgs.docker-buildx pkgs.skopeo pkgs.gdb pkgs.git
      ];
    in
    {
      lib.locks = locks;

      packages = each (pkgs: builtins.listToAttrs (builtins.concatMap
        (lock:
          let environment = import ./nix/environment.nix pkgs lock;
          in [
            { name = "${lock.id}-wheels"; value = environment.wheels; }
            { name = "${lock.id}-image"; value = environment.image; }
          ])
        (locksFor pkgs)));

      devShells = each (pkgs: {
        default = pkgs.mkShell { packages = tools pkgs; };
      });

      # `invoke matrix` of the checkout that it is started in, with the programs of the development shell.
      apps = each (pkgs: {
        matrix = {
          type = "app";
          program = toString (pkgs.writeShellScript "repromatrix-matrix" ''
            export PATH=${pkgs.lib.makeBinPath (tools pkgs)}:$PATH
            if [ ! -e tasks.py ] || [ ! -d repros ]; then
              echo "matrix: no checkout of Repromatrix here: start it in the folder that has tasks.py and repros/" >&2
              exit 2
            fi
            exec uv run --no-progress invoke matrix "$@"
          '');
        };
      });

      checks = each (pkgs: {
        # Every lock parses, and what it comes to; those of other platforms too.
        locks = pkgs.writeText "locks.json" (builtins.toJSON locks);
      });
    };
}
