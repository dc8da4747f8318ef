"""fw.kernel: a part of a program, scheduled by hand or written as text, is a kernel of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusewright as fw

RNG = np.random.default_rng(7)
X = RNG.normal(size=(64, 33)).astype(np.float32)
SPEC = fw.TensorSpec(X.shape, "float32")


def by_rows(s: fw.Schedule) -> None:
    """Every tensor's elements side by side, 64 a block."""
    t = s.outputs[0]
    t.merge(0).split(0, 64).parallelize(0, fw.BIDx).parallelize(1, fw.TIDx)
    s.transform_like(t)
    s.inline_most()


def gated(x: Any, y: Any) -> Any:
    return fw.tanh(x) * y + 0.5


own = fw.kernel(gated, schedule=by_rows)


def both(x: Any, y: Any) -> Any:
    h = fw.exp(x)
    return h + y, h * y


two = fw.kernel(both, schedule=by_rows)


def _agree(fn: Callable[..., Any], *arrays: Any, specs: Any = None) -> fw.Program:
    """The program of a function, whose simulated results are the oracle's and race with nothing."""
    specs = specs or [fw.TensorSpec(a.shape, str(a.dtype)) for a in arrays]
    fusion = fw.trace(fn, *specs)
    program = fw.compile(fusion)
    found = program.simulate(*arrays)
    assert found.races == []
    for a, b in zip(found.outputs, fw.evaluate(fusion, *arrays), strict=True):
        assert np.allclose(a, b, rtol=2e-5, atol=1e-5)
    assert fw.verify(program).ok
    return program


def _names(program: fw.Program) -> list[str]:
    return [x.kernel.name.rpartition("_")[0] for x in program.launches]


# --- scheduled by hand --------------------------------------------------------------------------


def test_a_part_is_a_kernel_of_its_own_and_explain_says_so() -> None:
    def program(x: Any, y: Any) -> Any:
        return fw.sum(own(fw.exp(x), y) * 2.0, axis=1)

    found = _agree(program, X, X + 1)
    assert _names(found)[1] == "fw_gated" and len(found.launches) == 3
    kernel = found.launches[1].kernel
    assert [str(e) for e in kernel.launch.block] == ["64", "1", "1"]  # as scheduled
    assert "merge(0).split(0, 64)" in fw.Report(found).show("edits")
    text = str(fw.Report(found))
    assert "gated is a kernel of its own, as the program asks" in text
    assert "gated, a kernel of its own" in text
    page = fw.Report(found)._repr_html_()
    assert "predicted, in a row, 1 launch by its bytes alone" in page
    assert "1 launch by its bytes alone" in str(fw.benchmark(found))


def test_without_the_request_it_is_fused() -> None:
    found = fw.compile(fw.trace(lambda x, y: gated(fw.exp(x), y) * 2.0, SPEC, SPEC))
    assert len(found.launches) == 1


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: own(x.T, y.T),  # views are stored first
        lambda x, y: own(x, x),  # one array twice
        lambda x, y: own(x[1:], y[:-1]),
        lambda x, y: own(fw.zeros((64, 33)), y),  # a literal
        lambda x, y: own(own(x, y), y) + own(y, x),
        lambda x, y: fw.concat([own(x, y), fw.exp(x), fw.exp(own(x, y))], axis=0),
        lambda x, y: fw.pad(own(x, y), ((1, 1), (2, 0))),
        lambda x, y: two(x, y),
        lambda x, y: fw.stack([*two(x, y)]),
        lambda x, y: two(*two(x.T, y.T)),
        lambda x, y: (fw.sum(two(x, y)[0], axis=0), two(x, y)[1]),
        lambda x, y: fw.concat([h := fw.nn.softmax(x, axis=-1), own(h, y)], axis=1),
        lambda x, y: fw.broadcast_to(own(x, y), (3, 64, 33)) + fw.sum(x),
    ],
)
def test_what_stands_around_it_does_not_matter(program: Callable[..., Any]) -> None:
    found = _agree(program, X, RNG.normal(size=X.shape).astype(np.float32))
    assert any("gated" in n or "both" in n for n in _names(found))
    for x in found.launches:
        if x.kernel.name.startswith(("fw_gated", "fw_both")):
            assert all(s.is_whole for s in (*x.reads, *x.writes))


def test_equal_calls_share_a_kernel_and_a_launch() -> None:
    def program(x: Any, y: Any) -> Any:
        return own(x, y) + 1.0, own(x, y) * 2.0, own(y, x)

    found = _agree(program, X, X * 2)
    launches = [x for x in found.launches if x.kernel.name.startswith("fw_gated")]
    assert len(launches) == 2 and launches[0].kernel is launches[1].kernel


def test_both_results_of_a_call_come_from_one_launch() -> None:
    found = _agree(lambda x, y: two(x, y), X, X + 1)
    assert len(found.launches) == 1 and len(found.launches[0].writes) == 2


def test_it_runs_by_itself_on_data() -> None:
    assert np.allclose(own(X, X), np.tanh(X) * X + 0.5, rtol=1e-5)
    a, b = two(X, X)
    assert np.allclose(a, np.exp(X) + X, rtol=1e-5) and np.allclose(b, np.exp(X) * X, rtol=1e-5)
    assert repr(own) == "<gated, a kernel of its own>" and own.__doc__ == gated.__doc__


def test_sizes_may_be_symbols() -> None:
    specs = [fw.TensorSpec(("n", 33), "float32")] * 2
    found = _agree(lambda x, y: own(x, y) * 2.0, X[:41].copy(), X[:41].copy(), specs=specs)
    assert _names(found)[0] == "fw_gated"


def test_structures_and_keywords() -> None:
    def parts(pair: Any, *, scale: Any) -> Any:
        return {"a": pair[0] * scale, "b": pair[1] + scale}

    made = fw.kernel(parts, schedule=by_rows)
    found = _agree(lambda x, y: list(made((x, y), scale=y).values()), X, X + 1)
    assert _names(found) == ["fw_parts"]


def test_a_saved_program_runs_without_its_source(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    fusion = fw.trace(lambda x, y: fw.sum(own(x, y), axis=1), SPEC, SPEC)
    loaded = fw.load(fw.compile(fusion).save(tmp_path / "a.fw"))
    (got,) = loaded.simulate(X, X).outputs
    assert np.allclose(got, (np.tanh(X) * X + 0.5).sum(1), rtol=1e-4)
    with pytest.raises(fw.UserError, match="gated is a kernel of the program's own, which a file"):
        fw.evaluate(loaded.fusion, X, X)


# --- written as text ----------------------------------------------------------------------------

TEXT = """kernel shifted {
  param x: float32[2112]
  param y: float32[2112]
  grid (bx < 33, by < 1, bz < 1)
  block (tx < 64, ty < 1, tz < 1)
  local r: float32[1]
  shared a: float32[64] offset 0
  r[0] = load x[64*bx + tx]
  store a[tx] = r[0]
  block_sync #0  // RAW smem a
  r[0] = load a[63 - tx]
  store y[64*bx + tx] = r[0]
}"""


def test_a_kernel_from_a_text_is_an_operation() -> None:
    shifted = fw.kernel(fw.parse_kernel(TEXT), results=fw.TensorSpec(X.shape, "float32"))
    found = _agree(lambda x: fw.exp(shifted(x * 2.0)) + 1.0, X)
    assert len(found.launches) == 3
    want = np.exp(2 * X.reshape(33, 64)[:, ::-1].reshape(X.shape)) + 1
    (got,) = found.simulate(X).outputs
    assert np.allclose(got, want, rtol=1e-5)
    again = fw.kernel(fw.parse_kernel(TEXT), results="f32[33,64]")
    assert again(X.reshape(33, 64)).shape == (33, 64)


def test_a_text_that_lacks_a_sync_is_refused() -> None:
    lacking = "\n".join(x for x in TEXT.splitlines() if "block_sync" not in x)
    broken = fw.kernel(fw.parse_kernel(lacking), results=SPEC)
    with pytest.raises(fw.SpecError, match="no sync orders RAW smem a"):
        fw.compile(fw.trace(lambda x: broken(x), SPEC))


def test_a_race_of_a_text_is_found_by_the_oracle() -> None:
    racing = TEXT.replace("store y[64*bx + tx]", "store y[64*bx + (tx//2)]")
    broken = fw.kernel(fw.parse_kernel(racing), results=SPEC)
    with pytest.raises(fw.UserError, match=r"shifted: the simulator found \d+ races"):
        fw.evaluate(fw.trace(lambda x: broken(x), SPEC), X)


# --- rejections ---------------------------------------------------------------------------------


def _compiled(fn: Callable[..., Any], *specs: Any) -> object:
    return fw.compile(fw.trace(fn, *(specs or (SPEC, SPEC))))


def _strided(s: fw.Schedule) -> None:
    by_rows(s)
    s.outputs[0].set_allocation_order((1, 0))


def many(*xs: Any) -> Any:
    return sum(xs[1:], xs[0])


PARSED = fw.parse_kernel(TEXT)
SYMBOLIC = fw.TensorSpec(("n", 33), "float32")


@pytest.mark.parametrize(
    ("attempt", "error", "message"),
    [
        (lambda: fw.kernel(3), fw.UserError, "must be a function, or a kernel"),
        (lambda: fw.kernel(gated), fw.UserError, "a function needs schedule="),
        (lambda: fw.kernel(PARSED), fw.UserError, "is scheduled already, and its results"),
        (lambda: fw.kernel(gated, schedule=3), fw.UserError, "must be a function"),
        (lambda: fw.kernel(PARSED, results=3), fw.UserError, "must be fw.TensorSpecs of the"),
        (
            lambda: _compiled(fw.kernel(gated, schedule=lambda s: s["no_such"].merge(0))),
            fw.UserError,
            "no_such",
        ),
        (
            lambda: _compiled(fw.kernel(gated, schedule=lambda s: s.outputs[0].merge(5))),
            fw.ScheduleError,
            "merge",
        ),
        (
            lambda: _compiled(fw.kernel(gated, schedule=_strided)),
            fw.ScheduleError,
            "a kernel inside of a program stores C order",
        ),
        (
            lambda: _compiled(lambda x, y: two(x, y)[1]),
            fw.ScheduleError,
            "both: nothing uses its result 0",
        ),
        (
            lambda: _compiled(fw.kernel(many, schedule=by_rows), *[SPEC] * 25),
            fw.ScheduleError,
            "many cannot be one kernel: the kernel would read more than 24 tensors",
        ),
        (
            lambda: _compiled(lambda x, y: fw.grad(lambda a: fw.sum(own(a, y)))(x)),
            fw.UserError,
            "gated is a kernel of the program's own, which has no derivative",
        ),
        (
            lambda: _compiled(lambda x, y: fw.vmap(own)(x, y)),
            fw.UserError,
            "vmap: gated is a kernel of the program's own",
        ),
        (
            lambda: _compiled(fw.kernel(lambda x, y: x + y + X, schedule=by_rows)),
            fw.UserError,
            "uses arrays of known data",
        ),
        (
            lambda: _compiled(lambda x, y: own(x[1:], y[1:]), SYMBOLIC, SYMBOLIC),
            fw.UserError,
            "which is an expression in symbols",
        ),
        (
            lambda: _compiled(lambda x, y: fw.kernel(PARSED, results=SPEC)(x, y)),
            fw.UserError,
            "it has 2 parameters, and was given 2 arrays and 1 results",
        ),
        (
            lambda: _compiled(lambda x, y: fw.kernel(PARSED, results=SPEC)(x[1:])),
            fw.UserError,
            r"its parameter x is float32\[2112\], and was given",
        ),
        (
            lambda: _compiled(
                fw.kernel(fw.parse_kernel(TEXT.rpartition("  store y")[0] + "}"), results=SPEC),
                SPEC,
            ),
            fw.UserError,
            "stores nothing to its result y",
        ),
        (
            lambda: _compiled(
                fw.kernel(
                    fw.parse_kernel(TEXT.replace("store a[tx]", "store x[tx]")), results=SPEC
                ),
                SPEC,
            ),
            fw.UserError,
            "stores to its argument x",
        ),
        (
            lambda: fw.kernel(fw.compile(fw.trace(fw.exp, SYMBOLIC)).kernels[0].ir, results=SPEC),
            fw.UserError,
            "has arrays of constant size only",
        ),
    ],
)
def test_what_is_no_kernel_is_refused(
    attempt: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        attempt()


def test_the_module_and_the_function_of_one_name() -> None:
    from fusewright.kernel import Kernel

    assert Kernel is fw.Kernel and callable(fw.kernel) and fw.kernel.__name__ == "kernel"
