# The locks of containers/locks/ as data: { <id> = { id, python, platform, system, wheels, hash }; }.
#
# The format is that of repromatrix/envs/lockfile.py, one wheel a line:
#   jax==0.6.2 --hash=sha256:bb24...  # jax-0.6.2-py3-none-any.whl 2722396 2025-06-17T23:10:25Z
# Whatever is not of this form stops the evaluation: file, line, what to do. Pure: needs nothing but builtins.
folder:
let
  inherit (builtins)
    any attrNames concatMap concatStringsSep elemAt filter genList hashString head isString length listToAttrs match
    readDir readFile replaceStrings sort split substring tail;

  linesOf = text:
    let lines = filter isString (split "\n" text);
    in if elemAt lines (length lines - 1) == "" then genList (elemAt lines) (length lines - 1) else lines;

  # What the pattern's groups match; nothing where it does not.
  captured = pattern: text: let found = match pattern text; in if found == null then [ ] else found;

  wrong = id: where: message:
    throw "containers/locks/${id}.txt${where}: ${message}; lock it again: invoke lock --env ${id} --refresh";

  # A project's name as PEP 503 writes it, and so the lock: a file name may spell it otherwise.
  normal = name:
    let parts = filter (part: isString part && part != "") (split "[-_.]+" name);
    in replaceStrings (genList (n: substring n 1 upper) 26) (genList (n: substring n 1 lower) 26)
      (concatStringsSep "-" parts);
  upper = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  lower = "abcdefghijklmnopqrstuvwxyz";

  # Python, ABI and platform tag of a wheel, from its file name; `version` has the build tag, where there is one.
  fileOf = filename:
    let found = match "([^-]+)-([^-]+(-[0-9][^-]*)?)-([^-]+)-([^-]+)-([^-]+)\\.whl" filename;
    in if found == null then null else {
      name = elemAt found 0;
      version = elemAt found 1;
      python = elemAt found 3;
      abi = elemAt found 4;
      platform = elemAt found 5;
    };

  # One of the platforms of the file name is enough.
  fits = arch: platform:
    any (tag: isString tag && (tag == "any" || match ".*_${arch}" tag != null)) (split "\\." platform);

  wheelOf = id: arch: number: line:
    let
      bad = wrong id ":${toString number}";
      time = "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z";
      found = match ("([a-z0-9]+(-[a-z0-9]+)*)==([^ ]+) --hash=sha256:([0-9a-f]{64})"
        + "  # ([A-Za-z0-9._+-]+\\.whl) [0-9]+ (-|${time})") line;
      name = elemAt found 0;
      filename = elemAt found 4;
      file = fileOf filename;
    in
    if found == null then bad "not a locked wheel: '${substring 0 120 line}'"
    else if file == null || normal file.name != name then bad "${filename} is no wheel of ${name}"
    else if !fits arch file.platform then bad "${filename} does not fit ${arch}"
    else { inherit name filename file; version = elemAt found 2; sha256 = elemAt found 3; };

  lockOf = id:
    let
      lines = linesOf (readFile (folder + "/${id}.txt"));
      isFact = line: substring 0 2 line == "# ";
      # The first line is a title.
      facts = if lines == [ ] then [ ] else filter isFact (tail lines);
      bad = wrong id "";
      # The value of a fact of the header.
      fact = key: pattern:
        let found = concatMap (captured "# ${key}: (.*)") facts;
        in
        if found != [ ] && match pattern (head found) != null && filter (value: value != head found) found == [ ] then
          head found
        else bad "the header does not say '${key}: ...', or not in one way";
      python = fact "python" "3\\.[0-9]+";
      platform = fact "platform" "[a-z0-9_]+-manylinux_2_[0-9]+";
      arch = head (match "([a-z0-9_]+)-manylinux.*" platform);
      wheels = concatMap
        (number:
          let line = elemAt lines (number - 1);
          in if isFact line then [ ] else [ (wheelOf id arch number line) ])
        (genList (index: index + 1) (length lines));
      names = map (wheel: wheel.name) wheels;
      distinct = attrNames (listToAttrs (map (name: { inherit name; value = null; }) names));
    in
    {
      inherit id python platform;
      system = "${arch}-linux";
      wheels =
        if length names != length distinct then bad "a package is locked twice"
        else if fact "wheels" "[0-9]+" != toString (length wheels) then
          bad "the header does not count the ${toString (length wheels)} wheels below it"
        else wheels;
      # What decides the environment, as envs/model.py's `hash_of` has it.
      hash =
        let pins = map (wheel: "${wheel.name}==${wheel.version} ${wheel.sha256}") wheels;
        in hashString "sha256" (concatStringsSep "\n" ([ python platform ] ++ sort (a: b: a < b) pins));
    };
in
listToAttrs (map (id: { name = id; value = lockOf id; })
  (concatMap (captured "(.+)\\.txt") (attrNames (readDir folder))))
