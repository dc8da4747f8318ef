"""Regions of nets of images move whole sectors in channels-last memory; and what does not is
counted."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from bench import net_sectors as room  # noqa: E402
from bench.image_nets import NETS  # noqa: E402
from bench.moves import PROGRAMS  # noqa: E402
from bench.net_sectors import Region, Side, images_across, launches_of, sides_of  # noqa: E402
from bench.slow_kernels import graphs_of  # noqa: E402
from bench.stand_in import IdleDriver, stand_in  # noqa: E402

import fusewright as fw  # noqa: E402
from fusewright.frontends.torch.dynamo import parts_to_fuse  # noqa: E402
from fusewright.frontends.torch.model_times import program_of  # noqa: E402
from fusewright.frontends.torch.options import Options  # noqa: E402
from fusewright.target import target_of  # noqa: E402

TARGET = target_of("sm_90a")
MOST = 1.05
COPIES = {
    ("U-Net", "forward"): 6,  # two norms of 128 x 56 x 56, whose groups are a quarter of a sector
}
"""Copies of ours, by net and side; none elsewhere."""
ACROSS = {("ConvNeXt", "backward"): 1}
"""Images that torch itself lays in C order: the gradient of a mean of pixels."""


@pytest.mark.parametrize(
    ("net", "batch"),
    [("ConvNeXt", 4), *(pytest.param(n, 16, marks=pytest.mark.slow) for n in NETS)],
)
def test_regions_move_whole_sectors(net: str, batch: int) -> None:
    for side in sides_of(net, torch.bfloat16, batch, TARGET):
        assert side.sectors <= MOST and side.worst <= MOST, side.line()
        assert side.total("copies") <= COPIES.get((net, side.side), 0), side.line()
        assert len(side.across) <= ACROSS.get((net, side.side), 0), side.across


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_group_norm_of_channels_last_is_one_launch(dtype: torch.dtype) -> None:
    """Its groups are a sector, or half of one, of each pixel; what torch keeps lies so too."""
    model = torch.nn.Sequential(
        torch.nn.GroupNorm(32, 256), torch.nn.SiLU(), torch.nn.Conv2d(256, 8, 1)
    ).to(dtype, memory_format=torch.channels_last)
    x = torch.randn(16, 256, 28, 28).to(dtype, memory_format=torch.channels_last)
    with stand_in(IdleDriver()):
        graphs = graphs_of(lambda x: model(x), {"x": x.requires_grad_()}, train=True)
        parts, _ = parts_to_fuse(graphs["forward"], Options(target=TARGET.arch))
        program = program_of(parts[0], TARGET.arch)
    assert len(program.fusion.outputs) == 4
    stats = program.host.stats
    assert (stats["launches"], stats["copies"]) == (1, 0)
    assert list(images_across(graphs["forward"])) == []


def test_sectors_that_are_read_in_part_count_whole() -> None:
    """One element of 32 bytes each is read, and moves two sectors."""
    columns = fw.trace(lambda x: x[:, ::8] * 2.0, fw.TensorSpec((8192, 4096), "float32"))
    rows = fw.trace(lambda x: x[::8] * 2.0, fw.TensorSpec((8192, 4096), "float32"))
    found = [list(launches_of(fw.compile(f), TARGET)) for f in (columns, rows)]
    nbytes = 8192 * 4096 * 4
    (((_, scattered),), ((_, whole),)) = found
    assert scattered == pytest.approx(nbytes + nbytes / 8, rel=0.01)
    assert whole == pytest.approx(2 * nbytes / 8, rel=0.01)


def test_rows_that_are_left_out_are_bound_and_do_not_move() -> None:
    """A kernel is given the whole argument of `softmax(x)[::2]`, and reads every second row."""
    program = PROGRAMS["every second row of a softmax"].compiled()
    ((bound, moved),) = launches_of(program, TARGET)
    least = PROGRAMS["every second row of a softmax"].least(program)
    assert (bound / least, moved / least) == (1.5, 1.0)


def test_a_launch_that_matters_is_looked_at_alone() -> None:
    regions = (Region("a", 2, 1, 90, ((100, 100.0), (100, 200.0), (1, 9.0))),)
    side = Side("net", "float32", "forward", regions, ("x",))
    assert side.sectors == pytest.approx(309 / 201) and side.worst == 2.0
    assert side.line().startswith("| net float32 forward | 2 | 6 | 2 | 0 | 2.23 | 1.537 | 2.000 |")


def test_images_in_c_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "channels_last", torch.contiguous_format)
    model, inputs = NETS["ConvNeXt"](1)
    with stand_in(IdleDriver()):
        graphs = graphs_of(model.eval(), inputs, train=False)
    monkeypatch.undo()
    (graph,) = graphs.values()
    assert any("convolution" in x for x in images_across(graph))
    assert room.SIGNIFICANT < 0.5
