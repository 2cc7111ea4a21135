"""What is in an archive and where it came from, in two formats that other tools read.

An in-toto Statement (v1) with a SLSA Provenance (v1) predicate, and a CycloneDX bill of materials (1.6). Both are made
of the manifest alone, so the same archive gives the same bytes; the only time in them is its `created`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from packaging.utils import parse_wheel_filename

from repromatrix.carry.format import Carried, File, Manifest

Entry = dict[str, Any]

PACKAGES = ".packages"
"""Ending of the file that lists the packages of a base: `name=version=architecture` lines after the recipe."""

_NAMESPACE = uuid.UUID("6f0f6e2c-6a54-5a0c-9a3b-1d3c8f2f7b11")


def statement(manifest: Manifest) -> bytes:
    """The in-toto statement: wheels, images and bases of the archive, and that this tool put them together."""
    subjects = [_resource(_file_name(file), file.sha256) for file in _wheels(manifest)]
    subjects += [_resource(image.reference, image.manifest) for image in manifest.images]
    subjects += [_resource(_file_name(file), file.sha256) for file in _bases(manifest)]
    inputs = ("project/containers/locks/", "project/matrix.toml")
    return _text(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": sorted(subjects, key=lambda subject: (subject["name"], subject["digest"]["sha256"])),
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {
                "buildDefinition": {
                    "buildType": "urn:repromatrix:archive:1",
                    "externalParameters": {"environments": [each.id for each in manifest.environments]},
                    "internalParameters": {
                        "locks": {each.id: each.lock for each in manifest.environments},
                        "bases": {each.id: each.base for each in manifest.environments if each.base},
                    },
                    "resolvedDependencies": [
                        _resource(file.path.removeprefix("project/"), file.sha256)
                        for file in manifest.files
                        if file.path.startswith(inputs)
                    ],
                },
                "runDetails": {
                    "builder": {"id": "urn:repromatrix:tool", "version": {"repromatrix": manifest.tool}},
                    "metadata": {"finishedOn": manifest.created},
                },
            },
        }
    )


def sbom(manifest: Manifest, packages: Mapping[str, str]) -> bytes:
    """The bill of materials: every wheel, every Debian package of a base, every image.

    Args:
        packages: Text of the list of packages, by the hash of the base.
    """
    components = [*_wheel_components(manifest), *_debian_components(manifest, packages)]
    components += [
        {
            "type": "container",
            "bom-ref": f"image:{image.reference}",
            "name": image.reference,
            "version": f"sha256:{image.id}",
            "hashes": [{"alg": "SHA-256", "content": image.manifest}],
        }
        for image in manifest.images
    ]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": manifest.created,
            "tools": {"components": [{"type": "application", "name": "repromatrix", "version": manifest.tool}]},
            "component": {"type": "data", "bom-ref": "archive", "name": "repromatrix archive"},
        },
        "components": sorted(components, key=lambda component: str(component["bom-ref"])),
    }
    serial = uuid.uuid5(_NAMESPACE, json.dumps(document, sort_keys=True))
    return _text({"serialNumber": f"urn:uuid:{serial}", **document})


def _wheel_components(manifest: Manifest) -> Iterator[Entry]:
    users: dict[str, list[str]] = {}
    for environment in manifest.environments:
        for sha256 in environment.wheels:
            users.setdefault(sha256, []).append(environment.id)
    for file in manifest.files:
        area, *_ = file.path.split("/")
        if area == "tool":
            users.setdefault(file.sha256, []).append(f"repromatrix on Python {file.path.split('/')[1]}")
    for file in _wheels(manifest):
        filename = _file_name(file)
        name, version, _, _ = parse_wheel_filename(filename)
        yield {
            "type": "library",
            "bom-ref": f"wheel:{file.sha256}",
            "name": name,
            "version": str(version),
            "purl": f"pkg:pypi/{name}@{_quoted(str(version))}?file_name={_quoted(filename)}",
            "hashes": [{"alg": "SHA-256", "content": file.sha256}],
            "properties": [
                {"name": "repromatrix:environment", "value": user} for user in sorted(users.get(file.sha256, ()))
            ],
        }


def _debian_components(manifest: Manifest, packages: Mapping[str, str]) -> Iterator[Entry]:
    releases = _releases(manifest)
    files = {file.path: file for file in manifest.files if file.path.startswith("store/debs/")}
    for base, text in sorted(packages.items()):
        for line in text.splitlines():
            name, version, architecture = [*line.split("="), "", ""][:3]
            if not architecture:
                continue  # the recipe
            # apt writes the colon of an epoch as %3a.
            deb = files.get(f"store/debs/{base}/{name}_{version.replace(':', '%3a')}_{architecture}.deb")
            distro = f"&distro={releases[base]}" if base in releases else ""
            yield {
                "type": "library",
                "bom-ref": f"deb:{base}:{name}:{architecture}",
                "name": name,
                "version": version,
                "purl": f"pkg:deb/debian/{_quoted(name)}@{_quoted(version)}?arch={architecture}{distro}",
                **({"hashes": [{"alg": "SHA-256", "content": deb.sha256}]} if deb is not None else {}),
                "properties": [{"name": "repromatrix:base", "value": base}],
            }


def _quoted(text: str) -> str:
    """As the purl specification has it: an epoch's colon stays."""
    return quote(text, safe=".-_~:")


def _releases(manifest: Manifest) -> dict[str, str]:
    """Debian's release by hash of the base, as far as environments tell."""
    from repromatrix.envs.debian import RELEASES

    return {each.base: RELEASES[each.python] for each in manifest.environments if _from_debian(each, RELEASES)}


def _from_debian(environment: Carried, releases: Mapping[str, str]) -> bool:
    return bool(environment.base) and "@" not in environment.base and environment.python in releases


def _wheels(manifest: Manifest) -> list[File]:
    """Every wheel once, also where the tool and an environment share it."""
    found: dict[str, File] = {}
    for file in manifest.files:
        if file.path.startswith(("store/wheels/", "tool/")):
            found.setdefault(file.sha256, file)
    return list(found.values())


def _bases(manifest: Manifest) -> list[File]:
    return [file for file in manifest.files if file.path.startswith("store/bases/") and file.path.endswith(".tar.zst")]


def _file_name(file: File) -> str:
    return file.path.rpartition("/")[2]


def _resource(name: str, sha256: str) -> Entry:
    return {"name": name, "digest": {"sha256": sha256}}


def _text(document: Entry) -> bytes:
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"
