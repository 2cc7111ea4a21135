# One lock as packages: every wheel fetched by its hash, and an image of them.
#
# The image is laid out as those of containers/Dockerfile.j2 are: a venv at /opt/env, unpacked and compiled by the same
# envs/pack_core.py, so its files are those of the wheels, byte for byte. Hence no patching of libraries: what wheels
# expect of a Linux (PEP 600: libstdc++, libgcc_s, libz, the loader at its usual place) is brought in beside them.
pkgs: lock:
let
  fetch = wheel: pkgs.fetchPypi {
    inherit (wheel) sha256;
    inherit (wheel.file) version python abi platform;
    format = "wheel";
    # Wheels are found by the project's name as the file name spells it, and by the Python tag, which it calls dist.
    pname = wheel.file.name;
    dist = wheel.file.python;
  };

  python =
    let attribute = "python" + builtins.replaceStrings [ "." ] [ "" ] lock.python;
    in pkgs.${attribute} or (throw ("${lock.id}: this nixpkgs has no ${attribute}; "
      + "give another one: --override-input nixpkgs github:NixOS/nixpkgs/REVISION"));

  # A store path for each wheel, so a layer for each: images that share a wheel share its layer.
  unpacked = wheel: pkgs.runCommand "${lock.python}-${wheel.filename}" { } ''
    ln -s ${fetch wheel} ${wheel.filename}
    ${python}/bin/python3 ${../repromatrix/envs/pack_core.py} packs ${wheel.filename}
    mkdir $out
    tar -xf packs/${wheel.filename}.tar -C $out
  '';

  # Where programs of wheels (ptxas, for one) name their loader.
  loader = {
    x86_64-linux = "lib64/ld-linux-x86-64.so.2";
    aarch64-linux = "lib/ld-linux-aarch64.so.1";
  }.${lock.system};

  libraries = pkgs.lib.makeLibraryPath [ pkgs.stdenv.cc.cc.lib pkgs.zlib ];

  venv = pkgs.runCommand "venv-${lock.python}" { } ''
    mkdir -p $out/opt/env/bin $out/$(dirname ${loader})
    for name in python python3 python${lock.python}; do
      ln -s ${python}/bin/python${lock.python} $out/opt/env/bin/$name
    done
    printf 'home = %s\ninclude-system-site-packages = false\n' ${python}/bin > $out/opt/env/pyvenv.cfg
    ln -s ${pkgs.glibc}/lib/$(basename ${loader}) $out/${loader}
  '';
in
{
  # A folder of links, each with the wheel's file name: `pip install --no-index --find-links`.
  wheels = pkgs.linkFarm "${lock.id}-wheels" (map (wheel: { name = wheel.filename; path = fetch wheel; }) lock.wheels);

  # A script that writes the image to its standard output: `docker load`.
  image = pkgs.dockerTools.streamLayeredImage {
    name = "repromatrix";
    tag = "${lock.id}-nix";
    # Folders become folders and files become links, so $ORIGIN/../.. in one wheel finds the libraries of another: the
    # loader takes $ORIGIN from the path it opens (tried: with links to folders it does not find them).
    contents = map unpacked lock.wheels ++ [ venv pkgs.dockerTools.binSh ];
    extraCommands = "mkdir -m 1777 tmp";
    config = {
      Env = [
        "PATH=/opt/env/bin:/bin"
        "HOME=/tmp"
        # nixpkgs' loader reads no /etc/ld.so.cache: the driver's libraries, which a GPU runtime mounts, need a path.
        "LD_LIBRARY_PATH=${libraries}:/usr/lib64:/usr/lib/${lock.system}-gnu"
      ];
      Cmd = [ "python" ];
      User = "1000:1000";
      WorkingDir = "/tmp";
      Labels = {
        "org.repromatrix.environment" = lock.id;
        "org.repromatrix.lock" = lock.hash;
        "org.repromatrix.python" = lock.python;
      };
    };
  };
}
