{
  description = "A stand-in for nixpkgs: what flake.nix uses of it, and not an argument more";

  outputs = { self }: {
    legacyPackages = builtins.listToAttrs (map
      (system: { name = system; value = import ./packages.nix system; })
      [ "x86_64-linux" "aarch64-linux" ]);
  };
}
