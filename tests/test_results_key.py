from dataclasses import replace
from pathlib import Path

from repromatrix.results.key import cpu_facts, first_seen, gpu_facts, hardware_facts, memory_fact, result_key
from repromatrix.spec.model import Cell, Described, Environment, Repro

ENVIRONMENT = Environment((("jax", "0.6.0"), ("cuda", "none"), ("python", "3.11"), ("nccl", "locked")))
REPRO = Repro("demo", Path("repros/demo.py"), "print()", "c" * 64, body="a" * 64)
CELL = Cell(ENVIRONMENT, REPRO, (("n", 1), ("flag", "x")), "cpu", env=(("A", "1"), ("B", "2")), timeout=60)
HARDWARE = {"cpu": "A CPU", "cpus": "2", "isa": "abc", "memory": "24 GiB", "kernel": "6.1"}


def key(cell: Cell = CELL, lock: str = "l", engine: str = "venv", base: str = "b", **hardware: str) -> str:
    return result_key(cell, lock, engine, base, {**HARDWARE, **hardware})


def test_everything_that_decides_changes_the_key() -> None:
    keys = [
        key(),
        key(lock="other"),
        key(engine="docker"),
        key(base="other"),
        key(cpu="another CPU"),
        key(cpus="4"),
        key(isa="def"),
        key(memory="48 GiB"),
        key(gpu="NVIDIA H100"),
        key(replace(CELL, params=(("n", 2), ("flag", "x")))),
        key(replace(CELL, params=(("n", "1"), ("flag", "x")))),
        key(replace(CELL, params=(("n", 1.0), ("flag", "x")))),
        key(replace(CELL, params=(("n", True), ("flag", "x")))),
        key(replace(CELL, target="cpu:8")),
        key(replace(CELL, env=(("A", "1"),))),
        key(replace(CELL, timeout=600)),
        key(replace(CELL, memory=2**30)),
        key(replace(CELL, repro=replace(REPRO, body="b" * 64))),
        key(replace(CELL, repro=replace(REPRO, cpus=1))),
        key(replace(CELL, repro=replace(REPRO, processes=2))),
    ]
    assert len(set(keys)) == len(keys)
    assert all(len(one) == 64 for one in keys)


def test_what_decides_nothing_does_not() -> None:
    assert key(kernel="6.2") == key()
    assert key(replace(CELL, env=(("B", "2"), ("A", "1")))) == key()
    assert key(replace(CELL, params=(("flag", "x"), ("n", 1)))) == key()
    assert key(replace(CELL, timeout=60.0)) == key()
    assert key(replace(CELL, repeat=10)) == key()
    # Of a cell that is run on what is there, a second run collects the HLO.
    assert {key(replace(CELL, hlo=level)) for level in ("failures", "text", "passes", "off")} == {key()}
    # A corrected title or claim changes the file, and nothing that runs.
    assert key(replace(CELL, repro=replace(REPRO, sha256="b" * 64))) == key()


def test_what_a_deviceless_cell_is_compiled_for_changes_its_key() -> None:
    gpus = Described(Path("a/h100.txtpb"), "d" * 64, "1x1x8")
    cell = replace(CELL, target="h100:8", hlo="passes", described=gpus)
    keys = [
        key(cell),
        key(replace(cell, described=None)),
        key(replace(cell, hlo="text")),  # its first run is the one that dumps
        key(replace(cell, described=replace(gpus, description_sha256="e" * 64))),
        key(replace(cell, described=replace(gpus, topology="1x2x4"))),
        key(replace(cell, described=replace(gpus, autotune=Path("t"), autotune_sha256="f" * 64))),
        key(replace(cell, described=replace(gpus, autotune=Path("t"), autotune_sha256="0" * 64))),
    ]
    assert len(set(keys)) == len(keys)
    moved = replace(gpus, description=Path("b/gpu.txtpb"))
    assert key(replace(cell, described=moved)) == key(cell), "where the file lies decides nothing"


def test_key_is_stable() -> None:
    """A changed key runs every known cell of every user again: raise KEY_FORMAT if you mean that."""
    assert key() == "b9537f562b28b9529c867e582239aabc4469a61e4ef814aa1e799a13e762b940"


def test_facts_from_cpuinfo() -> None:
    one = "processor : 0\nmodel name\t: Intel(R) Xeon(R)\nflags\t\t: fpu avx2 avx512f md_clear\n\nmodel name : other\n"
    facts = cpu_facts(one)
    assert facts["cpu"] == "Intel(R) Xeon(R)"
    assert cpu_facts(one.replace("md_clear", "ibrs fpu"))["isa"] == facts["isa"]
    assert cpu_facts(one.replace("avx512f", ""))["isa"] != facts["isa"]
    arm = "CPU implementer\t: 0x41\nFeatures\t: asimd sve\nCPU part\t: 0xd40\n"
    assert cpu_facts(arm)["cpu"] == "implementer 0x41 part 0xd40"
    assert cpu_facts("")["cpu"]


def test_memory_is_rounded() -> None:
    assert memory_fact("MemTotal:       24585944 kB\nMemFree: 1 kB\n") == "23 GiB"
    assert memory_fact("MemTotal:       24600000 kB\n") == "23 GiB"
    assert memory_fact("") == "unknown"


def test_memory_that_grows_while_the_machine_runs_is_that_of_its_boot(tmp_path: Path) -> None:
    kept = tmp_path / "state" / "memory"
    assert first_seen(kept, "boot-1", "31 GiB") == "31 GiB"
    assert first_seen(kept, "boot-1", "128 GiB") == "31 GiB"
    assert first_seen(kept, "boot-2", "128 GiB") == "128 GiB"  # an ordinary machine that was given more
    assert first_seen(kept, "boot-2", "31 GiB") == "128 GiB"
    kept.write_bytes(b"\xff")
    assert first_seen(kept, "boot-2", "31 GiB") == "31 GiB"
    assert first_seen(kept / "no folder", "boot-2", "31 GiB") == "31 GiB"
    assert first_seen(tmp_path / "other", "", "31 GiB") == "31 GiB"
    assert not (tmp_path / "other").exists()


def test_facts_are_the_same_with_and_without_a_checkout(tmp_path: Path) -> None:
    first, again = hardware_facts(tmp_path), hardware_facts(tmp_path)
    assert first == again == hardware_facts()


def test_facts_of_this_machine() -> None:
    facts = hardware_facts()
    assert list(facts) == ["cpu", "isa", "cpus", "memory", "kernel"]
    assert int(facts["cpus"]) >= 1
    assert all(facts.values())


def test_gpus_as_the_kernel_module_tells(tmp_path: Path) -> None:
    assert gpu_facts(tmp_path) == {}
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)  \n"
    )
    for place in ("0000:00:06.0", "0000:00:07.0"):
        (tmp_path / "gpus" / place).mkdir(parents=True)
        (tmp_path / "gpus" / place / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 41\n")
    assert gpu_facts(tmp_path) == {"gpus": "NVIDIA H200, NVIDIA H200", "driver": "580.159.04"}
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15\n"
    )
    assert gpu_facts(tmp_path)["driver"] == "535.104.05"
