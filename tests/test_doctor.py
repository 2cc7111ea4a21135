"""The host check: what it says of cores, stacks and their room, for hosts other than this one."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from repromatrix.engines.attempt import CORE_CAP
from repromatrix.project import Project
from repromatrix.ui.doctor import Finding, core_limit, core_pattern, core_room, ptrace, stack_readers
from tests.tools_case import PYTHON, ToolsCase

MATRIX = """\
[matrix]
jax = ["1.0.0"]
cuda = ["none"]
python = ["{python}"]
[run]
cores = "{cores}"
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "matrix.toml").write_text(MATRIX.format(python="3.11", cores="stacks"))
    return Project(tmp_path, tmp_path / "store")


def kernel(tmp_path: Path, pattern: str | None, uses_pid: str = "0", scope: str | None = None) -> Path:
    """A /proc/sys/kernel with these settings."""
    folder = tmp_path / "kernel"
    folder.mkdir()
    if pattern is not None:
        (folder / "core_pattern").write_text(pattern + "\n")
    (folder / "core_uses_pid").write_text(uses_pid + "\n")
    if scope is not None:
        (folder / "yama").mkdir()
        (folder / "yama" / "ptrace_scope").write_text(scope + "\n")
    return folder


SYSTEMD = "|/usr/lib/systemd/systemd-coredump %P %u %g %s %t %c %h"
APPORT = "|/usr/share/apport/apport -p%p -s%s -c%c -d%d -P%P -u%u -g%g -F%F -- %E"


@pytest.mark.parametrize(
    ("pattern", "uses_pid", "level", "found", "fix"),
    [
        ("core", "0", "ok", "the last one's is left", ""),
        ("core", "1", "ok", "core: where the process ran, in docker and venv", ""),
        ("core.%e.%p", "0", "ok", "core.%e.%p: where the process ran, in docker and venv", ""),
        ("cores/core.%p", "0", "warning", "lost unless the script makes that folder", "kernel.core_pattern=core"),
        ("", "0", "warning", "no core is written", "kernel.core_pattern=core"),
        ("", "1", "ok", ".PID: where the process ran, in docker and venv", ""),
        (SYSTEMD, "0", "warning", "the host's systemd-coredump takes every core", "`coredumpctl list`"),
        (APPORT, "0", "warning", "the host's apport takes every core", "/var/crash of the host"),
        ("|/opt/own --to=%p", "0", "warning", "the host's own takes every core", "look where /opt/own keeps them"),
        ("/no/such/folder/core", "0", "warning", "not there: they are lost; in docker the image's", "kernel."),
        ("/srv/%e/core", "0", "warning", "there only if somebody made it", "kernel.core_pattern=core"),
    ],
)
def test_core_pattern(
    project: Project, tmp_path: Path, pattern: str, uses_pid: str, level: str, found: str, fix: str
) -> None:
    (said,) = core_pattern(project, kernel(tmp_path, pattern, uses_pid))
    assert (said.subject, said.level) == ("core_pattern", level)
    assert found in said.found
    assert fix in said.fix
    assert bool(said.fix) == (level != "ok")
    assert ("overwr" in said.found or "last one's" in said.found) == ((pattern, uses_pid) == ("core", "0"))


def test_a_core_pattern_that_names_a_shared_folder(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "crash"
    folder.mkdir()
    (said,) = core_pattern(project, kernel(tmp_path, f"{folder}/core.%p"))
    assert "only those of the script's own processes are taken" in said.found
    assert "in docker the image's" in said.found
    (of_tmp,) = core_pattern(project, kernel(folder, "/tmp/core.%p"))
    assert "docker" not in of_tmp.found


def test_a_core_pattern_that_cannot_be_read(project: Project, tmp_path: Path) -> None:
    (said,) = core_pattern(project, kernel(tmp_path, None))
    assert (said.level, said.found) == ("warning", "not readable: No such file or directory")


@pytest.mark.parametrize(
    ("hard", "level", "found"),
    [
        (resource.RLIM_INFINITY, "ok", "none"),
        (0, "warning", "0: no core is written in venv"),
        (50_000_000, "warning", "cores in venv are cut after 50 MB"),
    ],
)
def test_core_limit(project: Project, hard: int, level: str, found: str) -> None:
    (said,) = core_limit(project, hard)
    assert (said.level, said.found) == (level, found)
    assert ("limits.conf" in said.fix) == (level == "warning")


def test_room_for_cores(project: Project) -> None:
    (plenty,) = core_room(project, 10 * CORE_CAP)
    assert plenty == Finding("room for cores", "ok", "171.8 GB free for the evidence: a core is cut after 17.2 GB")
    (enough,) = core_room(project, 20_000_000_000)
    assert enough.level == "ok"
    assert enough.found.endswith("cut after 10.0 GB")
    (little,) = core_room(project, 4_000_000_000)
    assert (little.level, little.found) == ("warning", "4.0 GB free for the evidence: a core is cut after 2.0 GB")
    assert "8.8 GB" in little.fix
    project.matrix_toml.write_text(MATRIX.format(python="3.11", cores="off"))
    (off,) = core_room(project, 0)
    assert (off.level, off.found) == ("ok", 'not needed: [run] cores = "off"')


@pytest.mark.parametrize(
    ("scope", "level", "found", "fix"),
    [
        (None, "ok", "no Yama", ""),
        ("0", "ok", "hangs can be read", ""),
        ("1", "warning", "its children may refuse", "sysctl kernel.yama.ptrace_scope=0"),
        ("2", "warning", "only root may read a hang, and in docker nobody", "sysctl kernel.yama.ptrace_scope=0"),
        ("3", "warning", "nobody may read a hang", "until the next boot"),
    ],
)
def test_ptrace(project: Project, tmp_path: Path, scope: str | None, level: str, found: str, fix: str) -> None:
    (said,) = ptrace(project, kernel(tmp_path, "core", scope=scope))
    assert said.level == level
    assert found in said.found
    assert fix in said.fix
    assert bool(said.fix) == (level != "ok")


def stack_finding(case: ToolsCase, python: str = PYTHON) -> Finding:
    case.project.matrix_toml.write_text(MATRIX.format(python=python, cores="stacks"))
    (said,) = stack_readers(case.project, case.locks)
    assert said.subject == f"stack readers for Python {python}"
    return said


def test_stack_readers(tools_case: ToolsCase) -> None:
    """Each answer, and that asking fetches nothing."""
    lacking = stack_finding(tools_case)
    assert lacking.level == "warning"
    assert "the index has none of the packages of the stack readers (py-spy 1.0, pystack 1.0)" in lacking.found
    assert lacking.fix.startswith("crashes and hangs are recorded without native stacks; ")
    tools_case.publish("py-spy")
    assert stack_finding(tools_case).found == "the index does not serve pystack-1.0-py3-none-any.whl"
    tools_case.publish("pystack")
    served = stack_finding(tools_case)
    assert (served.level, served.found) == ("ok", "not in the store; the next run fetches 0 MB from the index")
    assert not any(path.endswith(".whl") for path in tools_case.index.requests)
    assert not tools_case.project.store.exists()
    folder = tools_case.tools()
    assert stack_finding(tools_case) == Finding(f"stack readers for Python {PYTHON}", "ok", str(folder))
    assert stack_finding(tools_case, "3.8").found == "pystack has no wheel for it"
