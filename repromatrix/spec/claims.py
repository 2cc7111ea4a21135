"""Mistakes in what a repro claims that the types of its metadata do not tell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from repromatrix.spec.mistakes import Mistakes
from repromatrix.spec.when import WhenError, parse_when
from repromatrix.spec.words import nearest

_PROBED = {"strings": ("strings",), "symbols": ("dynsym", "symtab"), "flags": ("flag",)}
"""What a probe looks up, and the kinds of metrics that come of it."""


def check_claims(data: Mapping[str, object], mistakes: Mistakes) -> None:
    """Note the mistakes of `expect`, and of `hlo` where it collects less than claims and witness need."""
    claims = data.get("expect")
    always = 0
    for number, claim in enumerate(claims if isinstance(claims, list) else []):
        if not isinstance(claim, dict):
            continue
        path = ("expect", number)
        when, outcome = claim.get("when", ""), claim.get("outcome")
        words = {str(word) for word in (outcome if isinstance(outcome, list) else [outcome])}
        if isinstance(when, str):
            try:
                parse_when(when)
            except WhenError as error:
                mistakes.add((*path, "when"), error.message, error.hint)
            if always:
                mistakes.add(path, f"never reached: the entry at line {always} always holds")
            elif not when.strip():
                always = mistakes.line(path)
        if "signal" in claim and not words & {"crash", "hang", "oom"}:
            mistakes.add((*path, "signal"), "a signal goes with the outcome crash, hang or oom")
        if "exit_status" in claim and words <= {"crash", "hang"}:
            mistakes.add((*path, "exit_status"), "what a signal or the deadline ends has no exit status")
        if "signature" in claim and not words & {"error", "crash", "hang", "oom"}:
            mistakes.add((*path, "signature"), "only a failure has a signature")
        for key in ("metrics", "changed", "unchanged"):
            if key in claim and words == {"skip"}:
                mistakes.add((*path, key), "what is skipped finds nothing that a claim could be held against")
        _check_passes(claim, path, data, mistakes)
        _check_metrics(claim, path, data, mistakes)
    witness = data.get("witness")
    for key in ("hlo", "passes"):
        if data.get("hlo") == "off" and isinstance(witness, dict) and witness.get(key):
            mistakes.add(("witness", key), 'this is looked for in what is collected of the HLO, and hlo = "off"')


def _check_passes(
    claim: Mapping[str, object], path: tuple[str, int], data: Mapping[str, object], mistakes: Mistakes
) -> None:
    changed, unchanged = claim.get("changed"), claim.get("unchanged")
    for key in ("changed", "unchanged"):
        if key not in claim:
            continue
        if data.get("probe") is True:
            mistakes.add((*path, key), "a probe compiles nothing")
        elif data.get("hlo") in ("text", "off"):
            mistakes.add((*path, key), 'which passes changed a module is collected by hlo = "passes" alone')
    if isinstance(changed, list):
        for number, glob in enumerate(unchanged if isinstance(unchanged, list) else []):
            if glob in changed:
                mistakes.add((*path, "unchanged", number), "this is claimed as changed as well")


def _check_metrics(
    claim: Mapping[str, object], path: tuple[str, int], data: Mapping[str, object], mistakes: Mistakes
) -> None:
    """Of a probe the names of the metrics are known: a misspelt one must not wait for the report."""
    metrics = claim.get("metrics")
    if data.get("probe") is not True or not isinstance(metrics, dict):
        return
    known = [*_probed(data)]
    kinds = {kind for kinds in _PROBED.values() for kind in kinds}
    for name in metrics:
        kind, slash, _ = name.partition("/")
        if slash and kind in kinds and name not in known:
            advice = nearest(name, known) or f"metrics of this probe: {', '.join(known) or 'none'}"
            mistakes.add((*path, "metrics", name), "this probe finds no such number", advice)


def _probed(data: Mapping[str, object]) -> Iterator[str]:
    """Metrics as `containers/probe.py` names them."""
    for key, kinds in _PROBED.items():
        texts = data.get(key)
        for text in texts if isinstance(texts, list) else []:
            name = text.lstrip("-").partition("=")[0] if key == "flags" and isinstance(text, str) else str(text)
            yield from (f"{kind}/{re.sub(r'[^A-Za-z0-9_.:/-]', '_', name)}" for kind in kinds)
