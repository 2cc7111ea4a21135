"""Names of dump files of all versions, and what an attempt's dumps tell together."""

# ruff: noqa: E501 (names of dumps are long)
from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repromatrix.evidence.hlo import Dump, Hlo, describe, parse_name
from repromatrix.evidence.hlo_diff import first_difference
from repromatrix.evidence.passes import LastPass, PassLog, pass_log

DATA = Path(__file__).parent / "data" / "hlo"
VERSIONS = ("0.4.30", "0.5.3", "0.6.2", "0.7.2", "0.8.3", "0.9.2", "0.10.2")
PASS_THROUGH = "HLO_passes_through_layout_assignment"


def lines(name: str) -> list[str]:
    return (DATA / name).read_text().split()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("module_0002.jit_my_fn.before_optimizations.txt", Dump("before", "jit_my_fn", 2)),
        ("module_0005.jit_my_fn.before_optimizations.hlo.pb", Dump("before", "jit_my_fn", 5, proto=True)),
        ("module_0005.jit_f.before_optimizations.hlo.pb.gz", Dump("before", "jit_f", 5, proto=True)),
        ("module_0004.jit_f.cpu_after_optimizations.txt", Dump("after", "jit_f", 4, backend="cpu")),
        ("module_0001.jit_f.sm_9.0_gpu_after_optimizations.txt", Dump("after", "jit_f", 1, backend="sm_9.0_gpu")),
        ("module_0001.jit_f.sm_9.0a_gpu_after_optimizations.hlo.pb", Dump("after", "jit_f", 1, True, backend="sm_9.0a_gpu")),
        ("module_0001.jit_f.sm_8.0_gpu_after_optimizations-buffer-assignment.txt", Dump("buffer", "jit_f", 1, backend="sm_8.0_gpu")),
        ("module_0001.jit_f.cpu_after_optimizations-memory-usage-report.pb", Dump("buffer", "jit_f", 1, True, backend="cpu")),
        ("module_0001.jit_f.debug_options", Dump("options", "jit_f", 1)),
        ("module_0001.jit_f.after_spmd_partitioner.txt", Dump("other", "jit_f", 1)),
        ("1796022158736.module_0012.jit_f.before_optimizations.txt", Dump("before", "jit_f", 12)),
        ("module_12345.jit_f.before_optimizations.txt", Dump("before", "jit_f", 12345)),
        # Over 255 characters: dump.cc leaves the module's name out.
        ("module_0004.before_optimizations.txt", Dump("before", "", 4)),
        ("module_0004.0107.fusion.after_dce.before_cse.txt", Dump("pass", "", 4, False, 107, "fusion", "dce", "cse")),
        (
            f"module_0002.jit_f.0003.{PASS_THROUGH}.after_CallInliner.before_batch-dot-simplification.txt",
            Dump("pass", "jit_f", 2, False, 3, PASS_THROUGH, "CallInliner", "batch-dot-simplification"),
        ),
        (
            "module_0000.jit_f.0011.after_layout_assignment.after_pipeline-start.before_pipeline-end.hlo.pb",
            Dump("pass", "jit_f", 0, True, 11, "after_layout_assignment", "pipeline-start", "pipeline-end"),
        ),
        (
            "module_0005.jit_f.0023.copy-insertion.after_adding_special-case_copies.txt",
            Dump("step", "jit_f", 5, False, 23, "copy-insertion", "after_adding_special-case_copies"),
        ),
        (
            "module_0005.jit_f.0021.copy-insertion.after_removing_unnecessary_copies.txt",
            Dump("step", "jit_f", 5, False, 21, "copy-insertion", "after_removing_unnecessary_copies"),
        ),
        ("module_0004.jit_f/module.mlir", Dump("other", "jit_f", 4)),
        ("module_0004.jit_f/compile_options.textproto", Dump("options", "jit_f", 4)),
        ("jit_my_fn_1796022158736/topology.pb", Dump("options", "jit_my_fn", -1, proto=True)),
        ("shardy/module_0001.jit_f/02.after_propagation.mlir", Dump("other", "jit_f", 1)),
        ("module_0002.jit_f.o", Dump("other", "jit_f", 2)),
        ("module_0005.jit_f.obj-file.wrapped_reduce-window.1_kernel_module.o", Dump("other", "jit_f", 5)),
        ("jit_f.gemm_fusion_dot_impl.triton-passes.log", None),
        ("core.12", None),
        ("", None),
    ],
)  # fmt: skip
def test_a_name(name: str, expected: Dump | None) -> None:
    assert parse_name(name) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_says_the_same_of_the_same_program(version: str) -> None:
    """Three modules, each with one text before and after; numbers and passes differ, names do not."""
    dumps = [dump for name in lines(f"dump-names.jax-{version}.txt") if (dump := parse_name(name))]
    names = ("jit_convert_element_type", "jit_broadcast_in_dim", "jit_my_fn")
    kinds = Counter((dump.name, dump.kind) for dump in dumps)
    for name in names:
        assert kinds[name, "before"] == kinds[name, "after"] == 1
        assert kinds[name, "step"] == 3
        assert kinds[name, "pass"] >= 11
        assert kinds[name, "buffer"] >= 1
    assert {dump.name for dump in dumps} == set(names)
    passes = [dump for dump in dumps if dump.kind == "pass" and dump.name == "jit_my_fn"]
    assert [dump.place for dump in passes] == sorted({dump.place for dump in passes})
    assert any(dump.after in ("CallInliner", "call-inliner") for dump in passes)


@pytest.mark.parametrize(
    ("listing", "unknown"),
    [("nested.jax-0.7.2", 0), ("nested.jax-0.10.2", 0), ("h100.jax-0.8.0", 1), ("h100.jax-0.10.2", 0)],
)
def test_listings_with_folders_and_of_gpus(listing: str, unknown: int) -> None:
    names = lines(f"dump-names-{listing}.txt")
    parsed = [parse_name(name) for name in names]
    assert parsed.count(None) == unknown
    assert {dump.name for dump in parsed if dump} <= {
        *("jit_convert_element_type", "jit_broadcast_in_dim", "jit_my_fn", "jit_f", "jit_f-clone"),
    }
    protos = [dump for dump in parsed if dump and dump.proto and dump.kind == "after"]
    assert {dump.backend for dump in protos} <= {"cpu", "sm_9.0a_gpu"}
    assert protos


@given(st.text(max_size=80) | st.from_regex(r"(\d{9}\.)?module_\d{4}(\.[a-z_]{1,9}){0,3}(\.\d{4}\.[a-z.]+)?\.txt"))
def test_any_name_gives_an_answer(name: str) -> None:
    dump = parse_name(name)
    assert dump is None or dump.kind in ("before", "after", "pass", "step", "buffer", "options", "other")


def evidence(version: str, log: PassLog | None = None) -> tuple[Hlo, dict[str, str]]:
    folder = DATA / f"dump-{version}"
    texts = {path.name: path.read_text() for path in folder.iterdir()}
    return describe(texts, texts.__getitem__, log or PassLog()), texts


def test_what_an_attempt_left() -> None:
    log = pass_log((DATA / "passlog-0.6.2.txt").read_text())
    hlo, texts = evidence("0.6.2", log)
    (module,) = hlo.modules
    assert module.name == "jit_my_fn"
    assert module.before == "8f58277f6bc19ff56c9f54da76556003"
    assert module.after == "21cf2a7005b82caf1207215df40ecbac"
    assert set(module.files) == set(texts)
    assert module.changed_by[0] == f"{PASS_THROUGH}: call-inliner"
    assert f"{PASS_THROUGH}: dce" not in module.changed_by, "it ran, and changed nothing"
    assert hlo.last == LastPass("jit_my_fn", "HLO passes after layout assignment", "dce")
    assert "jit_my_fn" in [ran.module for ran in hlo.ran]


def test_it_survives_the_disk() -> None:
    hlo, _ = evidence("0.6.2", pass_log((DATA / "passlog-0.6.2.txt").read_text()))
    hlo = replace(hlo, notes=("left out: `ä.txt`",))
    assert Hlo.from_json(hlo.to_json()) == hlo
    assert Hlo.from_json(Hlo().to_json()) == Hlo()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 2}', '{"schema": 1, "modules": [1]}', "[" * 100_000])
def test_another_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Hlo.from_json(text)


def test_modules_of_one_name_are_told_apart() -> None:
    text = (DATA / "before_optimizations.jax-0.10.2.txt").read_text()
    files = [f"module_000{n}.jit_f.before_optimizations.txt" for n in (7, 3)]
    assert [module.name for module in describe(files, lambda _: text, PassLog()).modules] == ["jit_f", "jit_f#2"]


def test_a_name_left_out_for_its_length_is_found() -> None:
    files = ["module_0003.jit_f.debug_options", "module_0003.before_optimizations.txt"]
    assert [module.name for module in describe(files, lambda _: "x", PassLog()).modules] == ["jit_f"]


def test_where_two_versions_part() -> None:
    """0.6.2's reshape-mover removes two reshapes that 0.5.3's leaves; later passes of 0.5.3 catch up."""
    (a, a_texts), (b, b_texts) = evidence("0.5.3"), evidence("0.6.2")
    (found,) = first_difference(a, b, (a_texts.get, b_texts.get))
    assert found.place == "pass"
    assert found.alike == "simplification: tree_reduction_rewriter"
    assert found.first == found.second == "simplification: reshape-mover"
    assert (found.only_first, found.only_second) == ((), ())
    assert found.same_end
    assert "-  %reshape.2 = f32[1,64] reshape(%reshape.1)" in found.diff
    assert found.words == (
        "jit_my_fn first differs after simplification: reshape-mover; "
        "the same until after simplification: tree_reduction_rewriter; the same again after optimisation"
    )


def test_a_pass_that_changed_one_alone_is_named() -> None:
    (a, a_texts), (b, b_texts) = evidence("0.5.3"), evidence("0.6.2")
    (module,) = b.modules
    kept = tuple(change for change in module.changes if change.after != "reshape-mover")
    (found,) = first_difference(a, replace(b, modules=(replace(module, changes=kept),)), (a_texts.get, b_texts.get))
    assert found.only_first[0] == "simplification: reshape-mover"
    assert found.only_second == ()
    assert "simplification: reshape-mover in the first alone" in found.words


def test_another_schedule_is_said() -> None:
    (a, a_texts), (b, b_texts) = evidence("0.4.30"), evidence("0.5.3")
    (found,) = first_difference(a, b, (a_texts.get, b_texts.get))
    assert found.place == "schedule"
    assert found.words == "jit_my_fn differs after optimisation in the order of its schedule alone"
    (found,) = first_difference(a, b, (a_texts.get, lambda _: None))
    assert (found.place, found.diff) == ("after", "")


def test_another_program_is_said() -> None:
    name = "module_0001.jit_f.before_optimizations.txt"
    texts = [{name: (DATA / f"h100-{version}" / name).read_text()} for version in ("0.8.0", "0.10.1", "0.10.2")]
    old, new, newer = (describe(one, one.__getitem__, PassLog()) for one in texts)
    (found,) = first_difference(old, new, (texts[0].get, texts[1].get))
    assert found.place == "before"
    assert "+  %call.2 = bf16[3] call(" in found.diff, "0.10.1 calls what 0.8.0 had inlined"
    assert first_difference(new, newer, (texts[1].get, texts[2].get)) == ()
