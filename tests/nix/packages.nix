# Functions take the arguments that nixpkgs' functions of that name take and refuse any other, so that what evaluates
# here evaluates there. Programs are those of the host: builds need `--option sandbox false`.
#
# host.json, beside this file, is the test's: { addresses = { <file name of a wheel> = <address>; };
# pythons = { "3.11" = <interpreter>; }; }.
system:
let
  inherit (builtins) attrNames concatStringsSep fromJSON isAttrs isList isString listToAttrs pathExists
    readFile replaceStrings toJSON;

  host = if pathExists ./host.json then fromJSON (readFile ./host.json) else { addresses = { }; pythons = { }; };

  run = name: attributes: script: derivation (attributes // {
    inherit name system;
    builder = "/bin/bash";
    # The shell stays until the end: Nix kills a builder that has closed its output, as tar does before it ends.
    args = [ "-euc" "${script}\nexit 0" ];
    PATH = "/usr/bin:/bin";
  });

  write = name: text: after: run name { inherit text; passAsFile = [ "text" ]; } ''
    cat $textPath > $out
    ${after}
  '';

  # A package of which only the name and the place matter.
  empty = name: run name { } "mkdir -p $out/bin $out/lib";

  python = minor: run "python3-${minor}" { } ''
    mkdir -p $out/bin
    for name in python3 python${minor}; do
      ln -s ${host.pythons.${minor} or "/no/such/python"} $out/bin/$name
    done
  '';

  # Folders become folders, files become links; of two files of one name the first stays.
  join = name: paths: after: run name { } ''
    mkdir $out
    for path in ${toString paths}; do
      (cd $path && find . -mindepth 1 -type d -printf '%P\n') | while read -r one; do mkdir -p "$out/$one"; done
      (cd $path && find . '!' -type d -printf '%P\n') | while read -r one; do
        [ -e "$out/$one" ] || ln -s "$path/$one" "$out/$one"
      done
    done
    cd $out
    ${after}
  '';
in
{
  stdenv = {
    hostPlatform = { inherit system; };
    cc.cc.lib = empty "gcc-lib";
  };

  lib = {
    makeBinPath = packages: concatStringsSep ":" (map (package: "${package}/bin") packages);
    makeLibraryPath = packages: concatStringsSep ":" (map (package: "${package}/lib") packages);
  };

  runCommand = name: attributes: script: assert isAttrs attributes && isString script; run name attributes script;
  writeText = name: text: assert isString text; write name text "";
  writeShellScript = name: text: write name "#!/bin/bash\n${text}" "chmod 755 $out";
  linkFarm = name: entries: run name { } ''
    mkdir $out
    ${concatStringsSep "\n" (map ({ name, path }: "ln -s ${path} $out/${name}") entries)}
  '';
  mkShell = { packages }: run "nix-shell" { inherit packages; } "echo $packages > $out";

  # The address is the host's business, as in nixpkgs it is nixpkgs'.
  fetchPypi = { pname, version, format, sha256, dist, python, abi, platform }:
    let name = "${pname}-${version}-${python}-${abi}-${platform}.whl";
    in assert format == "wheel" && dist == python; derivation {
      inherit name;
      system = "builtin";
      builder = "builtin:fetchurl";
      url = host.addresses.${name} or "file:///no/address/${name}";
      outputHashMode = "flat";
      outputHashAlgo = "sha256";
      outputHash = sha256;
      executable = false;
      unpack = false;
      preferLocalBuild = true;
      impureEnvVars = [ "http_proxy" "https_proxy" "all_proxy" "no_proxy" ];
    };

  dockerTools = {
    binSh = run "bin-sh" { } "mkdir -p $out/bin; ln -s /bin/sh $out/bin/sh";
    # nixpkgs' result writes an archive; this one is the root of the image, with its configuration beside it.
    streamLayeredImage = { name, tag, contents, extraCommands, config }:
      assert isList contents && isString extraCommands
        && attrNames config == [ "Cmd" "Env" "Labels" "User" "WorkingDir" ];
      let root = join "${name}-root" contents extraCommands;
      in run "stream-${name}" { config = toJSON config; passAsFile = [ "config" ]; } ''
        mkdir $out
        ln -s ${root} $out/root
        cp $configPath $out/config.json
        echo ${name}:${tag} > $out/reference
      '';
  };
}
// listToAttrs (map (name: { inherit name; value = empty name; })
  [ "python3" "uv" "docker-client" "docker-buildx" "skopeo" "gdb" "git" "glibc" "zlib" ])
// listToAttrs (map (minor: { name = "python" + replaceStrings [ "." ] [ "" ] minor; value = python minor; })
  [ "3.10" "3.11" "3.12" "3.13" "3.14" ])
