"""What uv's refusals mean, on its real texts (tests/data/uv, recorded with uv 0.13.9; hosts replaced)."""

from __future__ import annotations

from pathlib import Path

import pytest

from repromatrix.envs.compat import explain, missing_extras, withdrawn_pins, yanked

DATA = Path(__file__).parent / "data" / "uv"


def text(name: str) -> str:
    return (DATA / f"{name}.txt").read_text()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("too_old_python", "jax 0.11.2 needs Python >=3.12, and this environment has Python 3.11"),
        ("no_extra", "jax 0.4.30 has no extra cuda13"),
        ("jaxlib_does_not_fit", "jax 0.4.30 needs jaxlib >=0.4.27,<=0.4.30, and jaxlib 0.4.38 is asked for"),
        ("no_version", "the index has no jax 9.9.9"),
        ("no_abi", "jaxlib >=0.4.27,<=0.4.30 has no wheel for Python 3.13 (only for cp39, cp310, cp311, cp312)"),
        (
            "no_platform",
            "tensorflow-metal 1.0.0 has no wheel for manylinux_2_28_x86_64 and Python 3.11"
            " (only for macosx_12_0_arm64, macosx_12_0_x86_64)",
        ),
        ("source_only", "docopt 0.6.2 has no wheel for Python 3.11 on this platform, and nothing is built from source"),
        ("too_new_for_cutoff", "no scipy >=1.16 was published by 2025-06-17T23:59:59Z, the cutoff of as_of"),
        ("published_after_cutoff", "no scipy >=1.16 was published by the cutoff of as_of"),
        ("no_such_range", "the index has no scipy >=99 (it has scipy <=1.18.1)"),
        ("package_needs_newer_jax", "flax 0.12.0 needs jax >=0.7.1, and jax 0.6.2 is asked for"),
        (
            "package_needs_one_of",
            "equinox 0.13.2 needs jax >=0.4.38,<0.7.0 or jax >0.7.1, and jax 0.4.30 is asked for",
        ),
        ("numpy_too_old", "jax 0.6.2 needs numpy >=1.26, and numpy 1.22.0 is asked for"),
        ("all_versions_need", "every version of other needs dep <1.4, and dep 1.8 is asked for"),
        ("two_pins", "numpy 1.26.4 and numpy >=2 are asked for and exclude each other"),
        (
            "cudnn_too_old",
            "jax[cuda12] 0.10.2 needs nvidia-cudnn-cu12 >=9.8, and nvidia-cudnn-cu12 8.9.7.29 is asked for",
        ),
        ("no_nccl", "the index has no nvidia-nccl-cu12 99.1"),
    ],
)
def test_an_impossible_environment_is_told_in_one_sentence(name: str, reason: str) -> None:
    assert explain(text(name), "3.11") == reason


@pytest.mark.parametrize(
    "name",
    [
        "no_such_package",
        "refused",
        "dns",
        "proxy",
        "proxy_credentials",
        "tls",
        "offline",
        "unauthorized",
        "forbidden",
        "server_error",
        "unavailable",
        "no_upload_time",
        "syntax",
        "withdrawn",
        "withdrawn_pin",
    ],
)
def test_no_other_text_makes_an_environment_impossible(name: str) -> None:
    assert explain(text(name), "3.11") is None


def test_an_unknown_refusal_is_not_understood() -> None:
    assert explain("error: No solution found when resolving dependencies\n  cause: Because of the moon.") is None


def test_trouble_beside_a_verdict_wins() -> None:
    """A refused extra index may hold just the version that the others lack."""
    assert explain(text("no_version") + text("unauthorized").partition("\n\n")[2]) is None


def test_what_uv_only_warns_of() -> None:
    assert missing_extras(text("no_extra")) == [("jax", "0.4.30", "cuda13")]
    assert yanked(text("withdrawn")) == [("jax", "0.4.32", ""), ("jaxlib", "0.4.32", "")]
    assert withdrawn_pins(text("withdrawn_pin")) == ["jaxlib==0.4.32"]
    assert withdrawn_pins(text("jaxlib_does_not_fit")) == []
