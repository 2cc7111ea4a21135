"""A pasted script becomes a repro and stays the script it was."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repromatrix.errors import UserError
from repromatrix.spec.new import new_repro
from repromatrix.spec.repro import load_repro


def block(title: str, target: str = "cpu") -> str:
    return f'# /// repro\n# title   = "{title}"\n# targets = ["{target}"]\n# ///\n'


@pytest.mark.parametrize(
    ("source", "head", "title", "target"),
    [
        ("import jax\n", "", "my bug", "cpu"),
        ('"""It crashes.\n\nAlways."""\nimport jax\n', "", "It crashes.", "cpu"),
        ("# It hangs\nimport jax\n", "", "It hangs", "cpu"),
        ("#!/usr/bin/env python\n# It hangs\nprint(1)\n", "#!/usr/bin/env python\n", "It hangs", "cpu"),
        (
            "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\nx = 1",
            "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n",
            "my bug",
            "cpu",
        ),
        ("# vim: set fileencoding=utf-8 :\nx = 1\n", "# vim: set fileencoding=utf-8 :\n", "my bug", "cpu"),
        ("# /// script\n# dependencies = []\n# ///\n# The words\nx = 1\n", "", "The words", "cpu"),
        ("from __future__ import annotations\nimport jax\n", "", "my bug", "cpu"),
        ('"""He said \\"no\\" \\\\o/."""\nx = 1\n', "", r"He said \"no\" \\o/.", "cpu"),
        ('import jax\nprint(jax.devices("gpu"))\n', "", "my bug", "gpu"),
        ("import jax\njax.devices('cuda')\n", "", "my bug", "gpu"),
        ("os.environ['XLA_FLAGS'] = '--xla_gpu_autotune_level=0'\n", "", "my bug", "gpu"),
        ("os.environ['XLA_FLAGS'] = '--xla_cpu_x=0'\n", "", "my bug", "cpu"),
    ],
)
def test_the_block_stands_at_the_top(source: str, head: str, title: str, target: str) -> None:
    assert new_repro(source, "my_bug", []) == head + block(title, target) + source[len(head) :]


@pytest.mark.parametrize(
    "source",
    [
        '"""It crashes."""\nfrom __future__ import annotations\nimport jax\n',
        '#!/usr/bin/env python\n# coding: utf-8\n"""It crashes."""\nfrom __future__ import annotations\nx = "é"\n',
        '\ufeff"""It crashes."""\nx = 1\n',
        "#!/usr/bin/env python\r\nx = 1\r\n",
        "x = 1",
    ],
)
def test_what_it_makes_loads_and_means_the_same(source: str, tmp_path: Path) -> None:
    path = tmp_path / "bug.py"
    path.write_bytes(new_repro(source, "bug", []).encode())
    repro = load_repro(path)
    assert repro.targets == ("cpu",)
    assert ast.dump(ast.parse(path.read_bytes())) == ast.dump(ast.parse(source.encode()))
    compile(path.read_bytes(), "bug.py", "exec")


def test_windows_newlines_stay() -> None:
    assert new_repro("#!/bin/x\r\nx = 1\r\n", "bug", []).count("\r\n") == 6
    assert "\n" not in new_repro("#!/bin/x\r\nx = 1\r\n", "bug", []).replace("\r\n", "")


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), min_size=1, max_size=80))
def test_the_title_of_any_comment_is_toml(comment: str) -> None:
    import tomllib

    from repromatrix.spec.block import find_block

    source = f"# {comment}\nx = 1\n"
    try:
        made = new_repro(source, "bug", [])
    except UserError:
        assert "/// repro" in source.lower()
        return
    data = tomllib.loads(find_block(made).text)
    assert isinstance(data["title"], str)
    assert made.endswith("x = 1\n")


NOTEBOOK = """\
{
 "cells": [
  {"cell_type": "code", "execution_count": null, "metadata": {}, "outputs": [], "source": ["import jax"]}
 ],
 "metadata": {"language_info": {"name": "python"}},
 "nbformat": 4,
 "nbformat_minor": 5
}
"""


@pytest.mark.parametrize(
    ("source", "where", "message", "hint"),
    [
        (NOTEBOOK, "my_bug", "this is a Jupyter notebook, not a script", "jupyter nbconvert --to script my_bug.ipynb"),
        ("\ufeff\n" + NOTEBOOK, "my_bug", "this is a Jupyter notebook, not a script", "nbconvert"),
        ("import jax\nprint(jax\n", "my_bug:2", "'(' was never closed: print(jax", "read as Python 3."),
        ("print 'python 2'\n", "my_bug:1", "Missing parentheses in call to 'print'", "read as Python 3."),
        ("import jax\n!pip install jax\n", "my_bug:2", "invalid syntax: !pip install jax", "`packages`"),
        ("%time f()\n", "my_bug:1", "invalid syntax: %time f()", "for IPython"),
        (">>> import jax\n>>> f()\n1\n", "my_bug:1", "invalid syntax: >>> import jax", "prompts"),
        ("```python\nimport jax\n```\n", "my_bug:1", "invalid syntax: ```python", "code block"),
        ("\ufeffx = 1\n  y = 2\n", "my_bug:2", "unexpected indent: y = 2", "write its metadata into repros/my_bug.py"),
        ("x = 1\0\n", "my_bug", "the script holds null characters", "UTF-8"),
    ],
)
def test_what_is_no_script_is_refused(source: str, where: str, message: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        new_repro(source, "my_bug", [])
    assert caught.value.where == where
    assert caught.value.message.startswith(message)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "source", ['{"cells": 1}\n', "{1: 2}\n", "{\n}\n", "x = " + "(" * 80 + "1" + ")" * 80, "x = '" + "a" * 10_000 + "'"]
)
def test_what_only_looks_like_a_notebook_is_a_script(source: str) -> None:
    assert new_repro(source, "my_bug", []).endswith(source)


def test_refusals() -> None:
    with pytest.raises(UserError) as caught:
        new_repro("x = 1\n# /// repro\n# ///\n", "bug", [])
    assert str(caught.value) == (
        "bug:2: the script has metadata already\n  it is a repro already: copy it into the folder of repros"
    )
    with pytest.raises(UserError) as caught:
        new_repro("#/// repro\n", "bug", [])
    assert str(caught.value) == ("bug:1: expected `# /// repro`, found `#/// repro`\n  the spelling is that of PEP 723")
    with pytest.raises(UserError) as caught:
        new_repro("x = 1\n", "bug", ["other", "bug"])
    assert str(caught.value) == 'there is a repro "bug" already\n  choose another name'
    with pytest.raises(UserError) as caught:
        new_repro("x = 1\n", "_bug", [])
    assert str(caught.value) == (
        '"_bug" cannot name a repro\n  letters, digits, `_`, `-` and `.`; a letter or digit first'
    )
    with pytest.raises(UserError) as caught:
        new_repro("\n \n", "bug", [])
    assert str(caught.value) == "bug: the script is empty"
