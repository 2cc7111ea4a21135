"""What a witness finds in the output and in what was compiled, and what is said where it does not."""

from __future__ import annotations

import pytest

from repromatrix.evidence.witness import Compiled, lacking
from repromatrix.spec.model import Witness

LOOP = "ENTRY %main {\n  ROOT %while.1 = f32[8] while(%x), condition=%c, body=%b\n}"
PERMUTE = "  %p = bf16[8] collective-permute-start(%x), source_target_pairs={{0,1}}"
COMPILED = Compiled((LOOP, PERMUTE), ran=("dce", "collective-pipeliner-forward"))


def test_all_of_it_must_be_in_one_module() -> None:
    witness = Witness(hlo=("while", r"f32\[\d+\] while\("), passes=("dce", "*pipeliner*"))
    assert lacking(witness, "", "", COMPILED) == ""
    split = Witness(hlo=("while", "collective-permute"))
    assert lacking(split, "", "", COMPILED) == (
        "2 modules after optimisation, none with all of 'while', 'collective-permute'"
    )
    assert lacking(split, "", "", Compiled((PERMUTE, LOOP + PERMUTE))) == ""


def test_the_output_comes_first() -> None:
    witness = Witness(hlo=("fusion",), output=("jit ran", "on stderr"))
    assert lacking(witness, "jit", "on stderr", COMPILED) == "the output lacks 'jit ran'"


@pytest.mark.parametrize(
    ("witness", "compiled", "words"),
    [
        (Witness(hlo=("fft", "while")), COMPILED, "2 modules after optimisation without 'fft'"),
        (Witness(passes=("dce", "algsimp")), COMPILED, "these passes did not run: 'algsimp'"),
        (Witness(hlo=("fft",)), None, "the HLO was not collected, so the witness cannot be checked"),
        (Witness(passes=("dce",)), None, "the HLO was not collected, so the witness cannot be checked"),
        (
            Witness(hlo=("fft",)),
            Compiled(trouble="no module was compiled"),
            "no optimised HLO was collected (no module was compiled), so the witness cannot be checked",
        ),
        (
            Witness(passes=("dce",)),
            Compiled((LOOP,)),
            "no log of passes was collected, so the witness cannot be checked",
        ),
        (
            Witness(hlo=("fft",)),
            Compiled((LOOP,), unread=1, trouble="a.txt: 70 MB"),
            "1 module after optimisation (1 more not read) without 'fft' (a.txt: 70 MB)",
        ),
        (
            Witness(passes=("algsimp",)),
            Compiled((LOOP,), ran=("dce",), trouble="the log of passes is cut"),
            "these passes did not run: 'algsimp' (the log of passes is cut)",
        ),
    ],
)
def test_what_lacks_is_said(witness: Witness, compiled: Compiled | None, words: str) -> None:
    assert lacking(witness, "", "", compiled) == words


def test_nothing_of_the_hlo_is_needed_for_output_alone() -> None:
    assert lacking(Witness(output=("a+",)), "caat", "", None) == ""
