"""The host program of compiled programs, layouts, and machine code for every target."""

from __future__ import annotations

import numpy as np
import pytest

import fusewright as fw
from fusewright.host.ir import RootKind
from fusewright.target import _TARGETS

N3 = [fw.TensorSpec((1024, 256), "float32")] * 4


def softmaxes(*xs):
    return fw.concat([fw.nn.softmax(x, axis=-1) for x in xs], axis=0) * 2


def test_writers_of_separate_pieces_run_side_by_side() -> None:
    """They compute alike, so that one launch holds the blocks of all."""
    stats = fw.compile(fw.trace(softmaxes, *N3)).host.stats
    assert stats["edges"]["total"] == stats["edges"]["RAW"] == 1
    assert (stats["critical_path"], stats["copies"], stats["fills"]) == (2, 0, 0)
    assert stats["peak_bytes"] == stats["lower_bound_bytes"] == 4 << 20


def test_a_kernel_that_only_moves_values_is_a_copy() -> None:
    host = fw.compile(fw.trace(lambda x: fw.copy(x), fw.TensorSpec((64, 32), "float32"))).host
    assert (host.stats["copies"], host.stats["bytes_copied"]) == (1, 64 * 32 * 4)
    assert list(host.stats["not_placed"]) == [host.launches[0].bindings[-1].tensor]


def test_a_kernel_that_only_writes_constants_is_a_fill() -> None:
    host = fw.compile(
        fw.trace(lambda x: (x, fw.zeros((8, 4))), fw.TensorSpec((4,), "float32"))
    ).host
    assert (host.stats["fills"], host.stats["bytes_filled"]) == (1, 8 * 4 * 4)


def test_bindings_are_the_hulls_of_the_tensors() -> None:
    def f(x):
        y = x - fw.sum(x, axis=0, keepdims=True)
        return y - fw.sum(y, axis=1, keepdims=True)

    p = fw.compile(fw.trace(f, fw.TensorSpec((48, 32), "float32", strides=(1, 50))))
    host = p.host
    assert [r.kind for r in host.roots].count(RootKind.INPUT) == 1
    first = host.launches[0].bindings[0]
    assert (str(first.offset), str(first.nbytes)) == ("0", str((47 + 31 * 50 + 1) * 4))
    assert all(b.root in host.roots for x in host.launches for b in x.bindings)
    assert "input x" in str(host) and "after #0 (RAW" in str(host)


def test_sizes_of_symbolic_programs_are_expressions() -> None:
    def f(x):
        y = x - fw.sum(x, axis=0, keepdims=True)
        return y - fw.sum(y, axis=1, keepdims=True)

    stats = fw.compile(fw.trace(f, fw.TensorSpec(("n", "m"), "float32"))).host.stats
    assert "n" in str(stats["bytes_moved"]) and stats["edges"]["maybe"] == 0


def test_an_output_twice_is_one_root() -> None:
    def f(x):
        y = x * 2
        return y, y, x + 1

    p = fw.compile(fw.trace(f, fw.TensorSpec((8,), "float32")))
    assert p.host.outputs == (1, 1, 2)
    a, b, c = p(np.arange(8, dtype=np.float32), device="sim")
    assert np.array_equal(a, b) and np.array_equal(c, np.arange(8) + 1)


def test_layouts_name_every_tensor_in_memory() -> None:
    p = fw.compile(fw.trace(softmaxes, *N3))
    names = {t.name for x in p.launches for t in (*x.inputs, *x.outputs)}
    assert names == set(p.layouts)
    assert p.layouts["xs_0"].required == p.layouts["xs_0"].actual
    assert "stored by fw_" in p.layouts[p.fusion.outputs[0].name].why


@pytest.mark.parametrize("arch", list(_TARGETS))
def test_every_target_compiles(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEWRIGHT_CACHE", "0")
    p = fw.compile(fw.trace(softmaxes, *N3[:1]), target=arch)
    assert all(k.cubin()[:4] == b"\x7fELF" for k in p.kernels)
    assert p.kernels[0].resources().spill_stores == 0


def softmax(x):
    return fw.nn.softmax(x, axis=-1)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("bounds", [{}, {"max": 64}, {"multiple_of": 8}])
def test_symbolic_rows_run_in_general_kernels(dynamic: bool, bounds: dict[str, int]) -> None:
    """No kernel of a symbolic row holds it, so one program serves rows of every length."""
    spec = fw.TensorSpec((6, fw.Sym("n", **bounds)), "float32")
    p = fw.compile(fw.trace(softmax, spec), dynamic=dynamic)
    assert "multi_pass" in p.kernels[0].heuristic.scheduler
    for n in (8, 40, 64):
        x = np.random.default_rng(n).standard_normal((6, n)).astype(np.float32)
        (y,) = p(x, device="sim")
        np.testing.assert_allclose(y, np.exp(x) / np.exp(x).sum(-1, keepdims=True), rtol=1e-5)


def test_dynamic_functions_never_compile_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEWRIGHT_LOG", "recompiles")
    general = fw.fuse(softmax, device="sim", dynamic=True)
    marked = fw.fuse(softmax, device="sim", dynamic={"x": (1,)})
    for n in (16, 5, 6, 7, 300):
        x = np.zeros((4, n), np.float32)
        assert general(x).shape == marked(x).shape == x.shape
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 2, "one each for odd sizes and for multiples of two and not of four"
    assert all("softmax: compile" in line for line in lines)


def test_a_size_of_the_call_may_leave_a_value_no_elements() -> None:
    fusion = fw.trace(lambda x: x[:, 2::2] + 1, fw.TensorSpec((2, "m", "n"), "float32"))
    program = fw.compile(fusion)
    for m in (2, 3, 6):
        x = np.arange(m * 8, dtype=np.float32).reshape(2, m, 4)
        (got,) = program.simulate(x).outputs
        np.testing.assert_array_equal(got, x[:, 2::2] + 1)
