"""What failed, in the form of JAX's own environment block, and what a page's line on the host is a line on."""

from __future__ import annotations

from dataclasses import replace

from repromatrix.report.markdown import index_page, repro_page
from repromatrix.report.system_info import block, made_in, system_info
from repromatrix.results.model import CellResult, RunInfo
from repromatrix.spec.model import Outcome
from tests.sample_cells import ATTEMPT, REPRO, RUN, matrix
from tests.test_report_markdown import golden

H200 = (
    ("GPU compute capability", "9.0"),
    ("GPU links", "NVLink x18 (1)"),
    ("MIG", "off"),
    ("cpu", "Intel(R) Xeon(R) Processor"),
    ("cpus", "32"),
    ("driver", "580.159.04"),
    ("driver's CUDA", "13.0"),
    ("gpus", "NVIDIA H200, NVIDIA H200"),
    ("kernel", "6.18.5"),
    ("persistence", "on"),
)
"""Of the machine with two H200s that reports/h200 is of."""


def failing(target: str = "gpu:2") -> CellResult:
    """As reports/h200/windowed_einsum_table.md has them."""
    notes = (
        "left 3 processes behind",
        "built with CUDA 13.0 and cuDNN 9.12.0, for NCCL 2.27.7 or newer",
        "loaded: cublas 13.1.0.3 of the host, cudart 13.0.96 of the host, cudnn 9.19.0.56 of the host",
    )
    return replace(
        matrix()[0],
        environment="jax0.10.2-cuda13local-py312",
        axes=(("jax", "0.10.2"), ("cuda", "13-local"), ("python", "3.12"), ("nccl", "locked")),
        target=target,
        params=(("size", "2048x8192x4096"),),
        base="CPython 3.12.3 of this host (2e736fee98c3)",
        outcome=Outcome.ERROR,
        attempts=(replace(ATTEMPT, outcome=Outcome.ERROR, notes=notes, ranks=()),),
        facts=(
            ("lock", "0af02a98321c"),
            ("jax", "0.10.2"),
            ("jax-cuda13-plugin", "0.10.2"),
            ("jaxlib", "0.10.2"),
            ("numpy", "2.4.6"),
            ("nccl of the host", "2.28.9+cuda13.0"),
        ),
    )


def on(host: tuple[tuple[str, str], ...]) -> RunInfo:
    return replace(RUN, facts=host)


def folded(cells: list[CellResult], run: RunInfo) -> str:
    made = system_info(cells, run)
    return "\n".join([*made.head, *(text for _, text in made.lines)]) + "\n"


def test_the_block_of_a_failure_on_gpus() -> None:
    golden("system_info_gpus.md", folded([failing()], on(H200)))


def test_restored_from_elsewhere_the_machine_is_not_known() -> None:
    """Its attempts began before the run that writes: that was on a machine which this one need not be."""
    later = replace(on(H200), started="2026-12-01T00:00:00Z")
    assert not made_in(failing(), later)
    golden("system_info_restored.md", folded([failing()], later))
    assert not made_in(failing(), replace(on(H200), attempted=0))


def test_facts_kept_with_the_result_are_its_own() -> None:
    kept = replace(failing(), facts=(*failing().facts, ("gpus", "NVIDIA B200"), ("driver", "590.1")))
    told = block(kept, {})
    assert "device info: NVIDIA B200-2, 2 local devices" in told
    assert "Driver Version: 590.1" in told
    assert told[-1].startswith("not kept of its machine: kernel, cpu, usable CPUs, CUDA Version, compute")


def test_devices() -> None:
    def devices(cell: CellResult) -> str:
        return next(line for line in block(cell, dict(H200)) if line.startswith("device info"))

    assert devices(failing("gpu")) == "device info: NVIDIA H200-1, 1 local devices"
    assert devices(failing("cpu:8")) == "device info: cpu-8, 8 local devices"
    assert devices(failing("h100:8")) == "device info: none: compiled for h100:8, which is described"
    ranks = replace(failing(), attempts=(ATTEMPT,))
    assert devices(ranks) == "device info: of each process not kept"
    assert "process_count: 2" in block(ranks, {})


def test_once_for_each_environment_and_engine_that_failed() -> None:
    first = failing()
    second = replace(first, params=(("size", "4096x8192x2048"),))
    docker = replace(first, engine="docker", base="Debian bookworm 9f1c2ab34d5e (mmdebstrap)")
    well = replace(first, environment="jax0.10.1-cuda13local-py312", outcome=Outcome.OK)
    page = folded([first, second, docker, well], on(H200))
    assert page.count("<details>") == 2
    assert "4096x8192x2048" not in page
    assert "python: 3.12\n" in page  # of an image no patch version is kept
    assert system_info([well], on(H200)).lines == ()


def test_the_line_on_the_host_says_whose_host_it_is() -> None:
    ran, before = failing(), replace(failing(), id="before")
    before = replace(before, attempts=(replace(ATTEMPT, started="2026-11-01T00:00:00.123Z"),))

    def last(cells: list[CellResult], run: RunInfo) -> str:
        return repro_page(REPRO, cells, run).rstrip().rpartition("\n")[2].partition(" GPU compute")[0]

    run = on(H200)
    assert last([ran], run) == "Host:"
    assert last([ran, before], run) == "Host of what this run attempted:"
    assert last([before], run) == "Written on a host with"
    assert last([ran], replace(run, attempted=0, reused=1)) == "Written on a host with"
    index = index_page([REPRO], [before], run)
    assert "\nWritten on a host with GPU compute capability 9.0" in index


def test_facts_kept_with_results_are_on_the_page_whoever_writes_it() -> None:
    other = (("cpu", "Xeon 8481C"), ("gpus", "NVIDIA B200"), ("GPU access", "host"))
    here = replace(failing(), facts=(*failing().facts, *H200))
    there = replace(failing(), environment="jax0.10.1", facts=(*failing().facts, *other))
    writes = RunInfo("invoke report", "2026-12-24T00:00:00Z", 0.0, "1", "venv", "", 0, 2, (("cpu", "a laptop"),))
    page = repro_page(REPRO, [here], writes)
    assert "\n\nHost: GPU compute capability 9.0; GPU links NVLink x18 (1); MIG off; cpu Intel(R)" in page
    assert "NVIDIA H200-2, 2 local devices" in page
    page = repro_page(REPRO, [here, here, there], writes)
    assert "\n\nHost of 2 cells: GPU compute capability 9.0;" in page
    assert page.rstrip().endswith("\n\nHost of 1 cell: cpu Xeon 8481C; gpus NVIDIA B200; GPU access host.")
    assert "laptop" not in page
    rest = page.partition("## Environments")[2].partition("## System info")[0]
    assert "gpus" not in rest  # it is on environments, not on machines
    assert "nccl of the host" in rest
    page = repro_page(REPRO, [here, failing()], writes)  # of one it is not known
    assert page.rstrip().endswith("Written on a host with cpu a laptop.")


def test_a_hostile_note_stays_in_its_line_and_block() -> None:
    cell = replace(failing(), attempts=(replace(ATTEMPT, notes=("built with ``` \n# head",)),))
    page = folded([cell], on(H200))
    assert "\n# head" not in page
    assert page.count("\n````\n") == 2
