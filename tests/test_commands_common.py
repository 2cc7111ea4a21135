"""What every command does alike."""

from __future__ import annotations

import pytest

from tests.conftest import Checkout


@pytest.mark.parametrize(
    "typed", ["archive --help", "issue --help", "handoff -h", "new --help", "run --help", "restore --help"]
)
def test_help_after_the_task_is_not_its_argument(checkout: Checkout, typed: str) -> None:
    """`invoke archive --help` once wrote an archive of everything into a folder called `--help`."""
    said = checkout.invoke(*typed.split())
    assert said.code == 2
    assert "comes before the task" in said.err
    assert "`uv run invoke --help TASK`" in said.err
    assert not list(checkout.root.glob("-*"))


@pytest.mark.parametrize("typed", ["archive --wheel-only --env jax1.0.0-cpu-*", "verify --expectt"])
def test_a_mistyped_option_is_not_an_argument(checkout: Checkout, typed: str) -> None:
    said = checkout.invoke(*typed.split())
    assert said.code == 2
    assert "there is no such option" in said.err
    assert not list(checkout.root.glob("-*"))
