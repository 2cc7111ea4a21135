"""One form for HLO text, whatever version printed it."""

# ruff: noqa: E501 (lines of HLO are long)
from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from repromatrix.evidence.hlo_text import canonical, diff, identity

DATA = Path(__file__).parent / "data" / "hlo"
TEXTS = {str(path.relative_to(DATA)): path.read_text() for path in sorted(DATA.glob("*/*.txt"))}
BEFORE = {path.name: path.read_text() for path in sorted(DATA.glob("before_optimizations.*"))}


def module(*body: str, head: str = "HloModule m") -> str:
    return "\n".join([head, "", "ENTRY %main {", *(f"  {line}" for line in body), "}", ""])


X = "%x = f32[4,8]{1,0} parameter(0)"
REPLICA = "ROOT %r = f32[4,8] all-gather(%x), dimensions={0}, "


def test_seven_versions_print_one_program() -> None:
    assert len(BEFORE) == len(set(BEFORE.values())) == 7
    assert {identity(text) for text in BEFORE.values()} == {"8f58277f6bc19ff56c9f54da76556003"}


def test_dumps_with_and_without_metadata_are_one() -> None:
    plain = TEXTS["dump-0.6.2/module_0005.jit_my_fn.before_optimizations.txt"]
    assert identity(plain) == identity(BEFORE["before_optimizations.jax-0.6.2.txt"])


def test_what_the_form_looks_like() -> None:
    assert (
        canonical(BEFORE["before_optimizations.jax-0.10.2.txt"])
        == """\
HloModule

%to_apply.1 {
  %parameter.1 = f32[] parameter(0)
  %parameter.2 = f32[] parameter(1)
  ROOT %add.1 = f32[] add(%parameter.1, %parameter.2)
}

%to_apply.2 {
  %parameter.1 = f32[64] parameter(0)
  %convert.1 = c64[64] convert(%parameter.1)
  ROOT %fft.1 = c64[64] fft(%convert.1), fft_length={64}, fft_type=FFT
}

ENTRY %main {
  %parameter.1 = f32[64,64] parameter(0)
  %transpose.1 = f32[64,64] transpose(%parameter.1), dimensions={1,0}
  %dot.1 = f32[64,64] dot(%parameter.1, %transpose.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %tanh.1 = f32[64,64] tanh(%dot.1)
  %constant.1 = f32[] constant(0)
  %reduce.1 = f32[] reduce(%tanh.1, %constant.1), dimensions={0,1}, to_apply=%to_apply.1
  %slice.1 = f32[1,64] slice(%parameter.1), slice={[0:1],[0:64]}
  %reshape.1 = f32[64] reshape(%slice.1)
  %call.1 = c64[64] call(%reshape.1), to_apply=%to_apply.2
  %real.1 = f32[64] real(%call.1)
  %reduce.2 = f32[] reduce(%real.1, %constant.1), dimensions={0}, to_apply=%to_apply.1
  ROOT %add.1 = f32[] add(%reduce.1, %reduce.2)
}
"""
    )


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param(
            module(X, "ROOT %r = f32[4,8] add(%x, %x)"),
            module("a.1 = f32[4,8]{0,1} parameter(0)", "ROOT b = f32[4,8]{0,1} add(f32[4,8]{0,1} a.1, f32[4,8]{0,1} a.1)"),
            id="names, sigils, layouts, shapes of operands",
        ),
        pytest.param(
            module(X, "ROOT %r = (f32[4,8]{1,0:T(8,128)}, f32[]) tuple(%x, /*index=1*/%x)"),
            module(X, "ROOT %r = (f32[4,8], /*index=1*/f32[]) tuple(%x, %x)"),
            id="tiling, comments",
        ),
        pytest.param(
            module(X, 'ROOT %r = f32[4,8] tanh(%x), metadata={op_name="jit(f)/tanh, }" source_line=4}, sharding={replicated}'),
            module(X, 'ROOT %r = f32[4,8] tanh(%x), sharding={replicated metadata={op_name="x"}}, origin={{"x"}}'),
            id="metadata, order of attributes",
        ),
        pytest.param(
            module(X, "%y = f32[] constant(1)", "%z = f32[4,8] tanh(%x)", "ROOT %r = f32[4,8] broadcast(%y), control-predecessors={%z}"),
            module("%y = f32[] constant(1)", X, "%z = f32[4,8] tanh(%x)", "ROOT %r = f32[4,8] broadcast(%y), control-predecessors={%z}"),
            id="order of instructions without a schedule",
        ),
        pytest.param(
            module(X, "%c = f32[] constant(0)", "%t = f32[4,8] tanh(%x)", "ROOT %r = f32[4,8] pad(%t, %c)", head="HloModule m, is_scheduled=true"),
            module("%c = f32[] constant(0)", X, "%t = f32[4,8] tanh(%x)", "ROOT %r = f32[4,8] pad(%t, %c)", head="HloModule m, is_scheduled=true"),
            id="constants in a schedule",
        ),
        pytest.param(module(X, REPLICA + "replica_groups=[2,2]<=[4]"), module(X, REPLICA + "replica_groups={{0,1},{2,3}}"), id="iota groups"),
        pytest.param(module(X, REPLICA + "replica_groups=[2,2]<=[2,2]T(1,0)"), module(X, REPLICA + "replica_groups={{0,2},{1,3}}"), id="transposed groups"),
        pytest.param(
            module(X, REPLICA + "replica_groups=mesh['axis_0'=2,'axis_1'=2] {'axis_0'}, channel_id=1"),
            module(X, REPLICA + "channel_id=7, replica_groups={{0,2},{1,3}}"),
            id="groups of a mesh, numbers of channels",
        ),
        pytest.param(module(X + ", sharding={devices=[2,1]<=[2]}", "ROOT %r = f32[4,8] tanh(%x)"), module(X + ", sharding={devices=[2,1]0,1}", "ROOT %r = f32[4,8] tanh(%x)"), id="iota sharding"),
        pytest.param(
            module(X, 'ROOT %r = f32[4,8] custom-call(%x), custom_call_target="g", backend_config="{\\"b\\":[2],\\"a\\":\\"x\\"}"'),
            module(X, 'ROOT %r = f32[4,8] custom-call(%x), backend_config={"a":"x","b":[2],"c":false,"wait_on_operation_queues":[],"d":"DEVICE_TYPE_INVALID","e":"0"}, custom_call_target="g"'),
            id="backend_config",
        ),
        pytest.param(
            module(X, "ROOT %r = f32[4,8] tanh(%x)", head="HloModule a, entry_computation_layout={(f32[4,8]{1,0})->f32[4,8]{1,0}}, allow_spmd_sharding_propagation_to_output={true}"),
            module(X, "ROOT %r = f32[4,8] tanh(%x)", head='HloModule b, frontend_attributes={fingerprint_before_lhs="26"}'),
            id="head",
        ),
        pytest.param(
            "HloModule m\n\n%f {\n  ROOT %p = f32[] parameter(0)\n}\n\n%g {\n  ROOT %p.1 = f32[] parameter(0)\n}\n\n" + module("%a = f32[] parameter(0)", "%b = f32[] call(%a), to_apply=%f", "ROOT %c = f32[] call(%b), to_apply=%g").removeprefix("HloModule m\n\n"),
            module("%a = f32[] parameter(0)", "%b = f32[] call(%a), to_apply=%f", "ROOT %c = f32[] call(%b), to_apply=%f") + "\n%dead {\n  ROOT %p = pred[] parameter(0)\n}\n\n%f {\n  ROOT %p = f32[] parameter(0)\n}\n",
            id="order, clones and dead computations",
        ),
    ],
)  # fmt: skip
def test_printing_alone(a: str, b: str) -> None:
    assert diff(a, b) == ""
    assert identity(a) == identity(b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("add(%x, %x)", "multiply(%x, %x)"),
        ("reduce(%x), dimensions={0}", "reduce(%x), dimensions={1}"),
        ("constant(1)", "constant(2)"),
        ("constant({1, 2})", "constant({1, 3})"),
        ("tanh(%x), sharding={replicated}", "tanh(%x)"),
        ("tanh(%x), sharding={devices=[1,2]<=[2]}", "tanh(%x), sharding={devices=[2,1]<=[2]}"),
        ("tanh(%x), channel_id=1", "tanh(%x)"),
        ('custom-call(%x), custom_call_target="f"', 'custom-call(%x), custom_call_target="g"'),
        ('tanh(%x), backend_config={"n":"3"}', 'tanh(%x), backend_config={"n":"4"}'),
        ('tanh(%x), frontend_attributes={a="1"}', 'tanh(%x), frontend_attributes={a="2"}'),
        ("tanh(%x), async_execution_thread=host", "tanh(%x)"),
        ("tanh(%x)", "tanh(%y)"),
        ("add(%x, %y)", "add(%y, %x)"),
        ("all-gather(%x), replica_groups={{0,1}}", "all-gather(%x), replica_groups={{0},{1}}"),
    ],
)
def test_another_program(a: str, b: str) -> None:
    texts = [module(X, "%y = f32[4,8] parameter(1)", f"ROOT %r = f32[4,8] {one}") for one in (a, b)]
    assert identity(texts[0]) != identity(texts[1])
    assert diff(*texts)


def test_memory_spaces_and_types_count() -> None:
    host, device = (module(X, f"ROOT %r = f32[4,8]{{1,0{space}}} copy(%x)") for space in (":S(5)", ""))
    assert identity(host) != identity(device)
    assert "f32[4,8]{:S(5)} copy" in canonical(host)
    assert identity(device) != identity(device.replace("f32", "bf16"))


def test_sharing_within_a_computation_counts() -> None:
    shared = module(X, "%a = f32[4,8] tanh(%x)", "ROOT %r = f32[4,8] add(%a, %a)")
    twice = module(X, "%a = f32[4,8] tanh(%x)", "%b = f32[4,8] tanh(%x)", "ROOT %r = f32[4,8] add(%a, %b)")
    assert identity(shared) != identity(twice)


def test_a_schedule_counts() -> None:
    body = "%a = f32[4,8] tanh(%x)", "%b = f32[4,8] exponential(%x)", "ROOT %r = f32[4,8] add(%a, %b)"
    for head, same in (("HloModule m", True), ("HloModule m, is_scheduled=true", False)):
        a, b = module(X, *body, head=head), module(X, body[1], body[0], body[2], head=head)
        assert (identity(a) == identity(b)) is same


@pytest.mark.parametrize("name", [*TEXTS, *BEFORE])
def test_real_texts_settle_at_once(name: str) -> None:
    text = TEXTS.get(name) or BEFORE[name]
    once = canonical(text)
    assert canonical(once) == once
    assert "ENTRY %main {" in once
    assert "%?" not in once, "every operand is known"
    assert "metadata" not in once


@pytest.mark.parametrize("name", [*TEXTS, *BEFORE])
def test_order_of_computations_does_not_matter(name: str) -> None:
    head, *blocks = (TEXTS.get(name) or BEFORE[name]).strip().split("\n\n")
    random.Random(name).shuffle(blocks)
    assert identity("\n\n".join([head, *blocks])) == identity(TEXTS.get(name) or BEFORE[name])


def test_what_versions_did_to_one_program() -> None:
    """After optimisation on the CPU: 0.4.30 has another schedule, 0.5.3 and 0.6.2 are the same."""
    ends = {version: identity(text) for version in ("0.4.30", "0.5.3", "0.6.2")
            for name, text in TEXTS.items() if name.startswith(f"dump-{version}/") and name.endswith("cpu_after_optimizations.txt")}  # fmt: skip
    assert ends["0.5.3"] == ends["0.6.2"] != ends["0.4.30"]


HLO = st.sampled_from(
    [
        *("HloModule m", "HloModule m, is_scheduled=true, num_partitions=2", "ENTRY %main {", "%f {", "f (a: f32[]) -> f32[] {"),
        *("}", "} // f", '}, execution_thread="host"', "ROOT %r = f32[] add(%a, %b)", "%a = f32[] parameter(0)"),
        *("b = f32[] constant({ {1, 2} })", "ROOT c = f32[2]{0} call(a, b), to_apply=f", "d = f32[] call(r), to_apply=%g"),
        *("%g {", "%a = f32[] tanh(%a), control-predecessors={%b, a}", "%w = (f32[], s32[2]{0}) while(%a), body=%f, condition=%g"),
        *('%q = f32[] custom-call(), backend_config={"a":{"b":0}}, x="%a"', "FileNames", '1 "a.py"', "", "%? = f32[] add(%?, nothing)"),
        *("%s = f32[] send(%a), channel_id=3", "%s2 = f32[] send(%b), channel_id=1, channel_id=2", "garbage {", "%u = f32[] f(((", '"'),
        *("%l = f32[2]{0}{1} x(a, b) trailing", "%k = f32[] sort(a), replica_groups=[2,1]<=[2], dimensions={0}, false=false"),
    ]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(HLO, max_size=30).map("\n".join))
@example("%f {\n  ROOT %c = f32[] call(), to_apply=%g\n}\n%g {\n  ROOT %c = f32[] call(), to_apply=%f\n}")
def test_lines_of_hlo_in_any_order(text: str) -> None:
    once = canonical(text)
    assert canonical(once) == once
    assert identity(once) == identity(text)


@settings(max_examples=300, deadline=None)
@given(st.text() | st.text(alphabet='%{}()[]",=\\/* \n\0RaO1:'))
def test_any_text_gives_an_answer(text: str) -> None:
    once = canonical(text)
    assert canonical(once) == once
    assert len(identity(text)) == 32


def test_time_is_linear() -> None:
    """10 MB take 2 s on two slow cores; what must not happen is that twice the text takes four times as long."""
    line = '%a.{n} = f32[64,64]{{1,0}} add(%a.{m}, %a.{m}), metadata={{op_name="jit(f)/jit(main)/add" source_line={n}}}'

    def seconds(count: int) -> float:
        lines = ["%a.0 = f32[64,64]{1,0} parameter(0)", *(line.format(n=n, m=n - 1) for n in range(1, count))]
        text = module(*lines, f"ROOT %r = f32[64,64] tanh(%a.{count - 1})")
        begin = time.process_time()
        assert canonical(text).count("\n") == count + 5
        return time.process_time() - begin

    # The best of three each, as the machine may be busy; what looks at every line for each line takes 64 times as long.
    small, large = (min(seconds(count) for _ in range(3)) for count in (2_000, 16_000))
    assert large < 32 * small
    assert large < 30


@pytest.mark.parametrize(
    "piece", ['"', "(", "{", "\\", '"\\', "/*", "%a.", "S(1)", "metadata={", "[1]<=[1]", ",", "{ ", "'a'=1,"]
)
def test_no_text_takes_long(piece: str) -> None:
    begin = time.process_time()
    for around in (
        "{}",
        "%a = f32[] add({})",
        "%a = f32[] x(), sharding={{{}",
        "%a = f32[] x(), replica_groups=mesh[{}",
        "HloModule m, {}",
    ):
        canonical(module(around.format(piece * 50_000)))
    assert time.process_time() - begin < 20
