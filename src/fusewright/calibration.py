"""What was measured on a device, where no data sheet says it: the constants of predicted times.

Predicted times order candidates; no result depends on them. `python -m bench.calibrate` measures
again, on any GPU, what one short kernel each can show. The others were fitted together, so that
the cost model gives the measured times of the bench (`python -m bench.predicted` compares).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Calibration:
    """Figures of one chip. Times are microseconds, clocks those of one multiprocessor.

    Measured by `bench.calibrate`:
        read_share            of the nominal bandwidth that reading reaches
        write_weight          a byte written over a byte read
        memory_latency_us     of a load while others are under way
        l2_nbytes_per_clock   that a multiprocessor reads from the second-level cache, all of them
                              reading at once
        exchange_us           shuffles, a barrier, and partial results through shared memory, until
                              the last warp is done
        lanes_share           of the time of an exchange, one between lanes of a warp, without a
                              barrier. The figure in use is older than its probe: it was fitted to
                              four draws that it limited (2020, 9202, 9365 and 9571 of the lot)
        start_us              until a block runs after another one has left
        launch_us             of a kernel on the device, beside its blocks
        lines_per_clock       of cached memory that a multiprocessor looks up
        narrow_clocks         of an access by a warp with less than 16 bytes a lane: at least 1, as
                              the first-level cache gives 128 bytes a clock. The figure in use is
                              older than its probe: it was fitted to tiles of odd sizes

    Fitted:
        idle_latency_us       of a load while few others are under way: 465 trips of a walk over
                              rows, each of which waits for what the one before asked for, took
                              281 us (maxima in two directions of float32[2048, 960, 8, 8], one row
                              a thread, one H100, 2026-11-27)
        cluster_exchange_us   an exchange between the blocks of a cluster, whose mbarriers count
                              what they send each other
        dependent_clocks      between instructions of a warp that need each other, with some
                              parallelism among them
        cached_share          of the second-level cache that holds what is read again soon
        hop_us                from a block that hands over to one that waits (`bench.turns`)
        gather_us             of a block until the totals of all blocks of its group are there, in
                              which it neither loads nor stores: trips of 32 and 18 of columns took
                              11.2 and 10.0 where their bytes take 5.6 and 4.4 (float16[2097152, 64]
                              and float64[600875, 24], one H100, 2026-11-27)
        thread_tile_us        around the steps of a tile of a product on the instructions of single
                              warps or on scalars: the first operands on their way, the results on
                              theirs
        exposed_clocks        of a tile of the depth in which a block alone on its multiprocessor
                              multiplies nothing: a wait and a barrier, until the last warp is
                              there, and the way of the first matrices. Estimated, about 30 each
        overlap               the order of the norm of the times of all resources
        tile_overlap          the same of narrow accesses and all else, where blocks fill tiles in
                              shared memory and empty them: 22 draws are off by 0.098 in the root
                              mean square, by 0.155 where the two are added, and by 0.122 with the
                              order of others (one H100, 2026-11-26 and 27)

    Fitted to products by warpgroups (`bench.product_fit`):
        product_share         of the nominal rate that matrix instructions keep up: at full load the
                              chip's power, not its clock, is the limit
        crowded_clocks        for a byte that passes shared memory beyond 128 a clock of a step's
                              matrix instructions, all multiprocessors busy: 1024 x 1024 x 65536
                              takes 217.5 us in halves of 128 x 128, 207.6 in quarters of 128 x 256
                              (one H100, 2026-11-26, bench/split-products-2026-11-26-h100.json)
        box_line_clocks       of a multiprocessor for a line of a box that arrives in its memory
        shared_line_clocks    for one that it asks the second-level cache for, all multiprocessors
                              asking at once
        beyond_clocks         for a row of a box beyond an edge, which is filled with zeros
        box_latency_us        from a slot of a ring that is free until its boxes begin to arrive
        box_read_share        of the nominal bandwidth that rings of boxes read memory with
        tile_us               around the steps of a tile: results on their way, a first batch alone
        sums_launch_us        of the kernel that sums slices, behind that of their products, in one
                              graph
        stream_launch_us      that a kernel behind another takes longer as a launch on a stream than
                              in a graph (`bench.product_sweep`: 3.5 and 4.5 for two, 0.9 for one)
        box_overlap           the order of the norm, for kernels whose operands come by boxes
        box_cluster_us        until the blocks of a cluster with rings have begun and left together

    What the model is off by, where candidates are compared:
        margin                how much faster another candidate has to be predicted than the first
                              one of the rules: what the model is off in the root mean square over
                              draws (H200, 2026-11-23, `bench.lot.accuracy`)
        kin_margin            the same of a candidate of the same scheduler, for which the model
                              errs in much the same way: of 77 draws it takes six others than
                              without, 1.44, 1.39, 1.27, 1.20, 1.03 and 0.99 times as fast; a margin
                              of 1.15 takes two of them, one of 1.0 16 more, which are 1.00 times as
                              fast (H100, 2026-11-27, `bench.lot.variants`)
        sure_margin           the same of a candidate that is behind in nothing that may decide:
                              what is measured twice differs by less
        doubt                 by how much a single resource of a launch may be predicted wrong: of
                              25 kernels the instructions that the model counts were 0.37 to 1.8
                              times those of their machine code (notes/measured.md)

    What products by warpgroups are off by, where they are ranked:
        product_margin        within which predicted times count as equal where a second kernel, a
                              copy or more blocks are weighed against none: the model is no better
        repeated_margin       the same of plans of one kernel, as measured times do: of 5121 x 5120
                              x 5120 and 1025 x 28672 x 4096 plans that were predicted 1.02 to 1.05
                              times as long, of fewer lines, took 1.03 to 1.07 times as long (one
                              H100, 2026-11-26)
        promoted_margin       the same where sums leave the accumulators on the way, which makes
                              narrow tiles slower than they are predicted: of 8193 x 8192 x 8192 in
                              8 bits tiles of 128 x 128 took 1.12 times those of 128 x 192 and were
                              predicted 0.99 times (one H100, 2026-11-26)
        widths_share          of the sums of all rounds with tiles of the menu, those with tiles of
                              a width between that are worth it: 6144 x 6144 x 6144 takes as long
                              with tiles of 256 x 144 as with 128 x 256, of as many sums (651 us,
                              one H100, 2026-11-26)
        cluster_margin        how much faster a plan in clusters has to be predicted than others:
                              twice what the model is off in the root mean square. Of nine measured
                              plans in clusters none was faster than the same one without by more
                              than the noise (H200, 2026-11-24, notes/products.md)
        alone_margin          of a plan outside of clusters, where rows begin inside of lines: such
                              plans take 1.1 to 1.27 of their prediction, those in clusters 0.98 to
                              1.05 (22 products, one H100, 2026-11-26)
        cluster_warpgroups    of a block in a cluster, at most, as all of two blocks hand each slot
                              of a ring back: tiles of 192 x 192 by three took 1.13 to 1.22 times as
                              long as the same prediction of two (4097 x 4104 x 4104 on an H200,
                              4096 x 4096 x 4104 on an H100, 2026-11-26)

    Of machine code:
        code_nbytes           that a multiprocessor runs without waiting for it: as vectors of a
                              thread were doubled, 11, 22, 44 and 88 KB took 160, 160, 169 and 198
                              us, 40, 80, 160 and 320 KB 238, 264, 319 and 415 us (two kernels, one
                              H100, 2026-11-26)
    """

    chip: str
    date: str
    source: str
    read_share: float
    write_weight: float
    memory_latency_us: float
    idle_latency_us: float
    l2_nbytes_per_clock: float
    exchange_us: float
    lanes_share: float
    start_us: float
    launch_us: float
    lines_per_clock: float
    cluster_exchange_us: float
    narrow_clocks: float
    dependent_clocks: float
    cached_share: float
    thread_tile_us: float
    exposed_clocks: float
    overlap: float
    tile_overlap: float
    product_share: float
    crowded_clocks: float
    box_line_clocks: float
    shared_line_clocks: float
    beyond_clocks: float
    box_latency_us: float
    box_read_share: float
    tile_us: float
    hop_us: float
    gather_us: float
    sums_launch_us: float
    stream_launch_us: float
    box_overlap: float
    box_cluster_us: float
    margin: float
    kin_margin: float
    sure_margin: float
    doubt: float
    product_margin: float
    repeated_margin: float
    promoted_margin: float
    widths_share: float
    cluster_margin: float
    alone_margin: float
    cluster_warpgroups: int
    code_nbytes: int


PRODUCT_FIGURES = (
    "product_share",
    "box_line_clocks",
    "shared_line_clocks",
    "beyond_clocks",
    "box_latency_us",
    "box_read_share",
    "tile_us",
    "sums_launch_us",
    "box_overlap",
    "box_cluster_us",
)
"""Figures that only many products show together."""

FITTED = (
    "stream_launch_us",
    "idle_latency_us",
    "cluster_exchange_us",
    "dependent_clocks",
    "cached_share",
    "hop_us",
    "gather_us",
    "thread_tile_us",
    "exposed_clocks",
    "overlap",
    "tile_overlap",
    "margin",
    "kin_margin",
    "sure_margin",
    "doubt",
    "product_margin",
    "repeated_margin",
    "promoted_margin",
    "widths_share",
    "cluster_margin",
    "alone_margin",
    "crowded_clocks",
    *PRODUCT_FIGURES,
)
"""Figures that no single kernel shows."""

H200 = Calibration(
    chip="NVIDIA H200",
    date="2026-11-22",
    source=(
        "the 24 cases of the bench, a copy at 0.885 of the nominal bandwidth, 10 million scattered "
        "lines in 26 us (seed 93 of the lot), tiles of seeds 9, 30, 51, 72 and 114; 83 plans of "
        "products of 2026-11-22 to 24, and 263 on an H100 of 2026-11-25, which has the same "
        "multiprocessors (`python -m bench.product_fit`)"
    ),
    read_share=0.95,
    write_weight=1.15,
    memory_latency_us=0.8,
    idle_latency_us=0.6,
    l2_nbytes_per_clock=46.0,
    exchange_us=0.3,
    lanes_share=0.25,
    start_us=0.25,
    launch_us=2.0,
    lines_per_clock=2.0,
    cluster_exchange_us=1.5,
    narrow_clocks=1.8,
    dependent_clocks=6.0,
    cached_share=0.5,
    thread_tile_us=2.0,
    exposed_clocks=80.0,
    overlap=6.0,
    tile_overlap=1.5,
    product_share=0.855,
    crowded_clocks=0.00244,
    box_line_clocks=1.78,
    shared_line_clocks=2.42,
    beyond_clocks=7.2,
    box_latency_us=0.79,
    box_read_share=0.87,
    tile_us=0.57,
    hop_us=0.9,
    gather_us=5.6,
    sums_launch_us=0.5,
    stream_launch_us=3.0,
    box_overlap=2.8,
    box_cluster_us=2.3,
    margin=1.3,
    kin_margin=1.1,
    sure_margin=1.05,
    doubt=2.0,
    product_margin=1.05,
    repeated_margin=1.01,
    promoted_margin=1.05,
    widths_share=0.97,
    cluster_margin=1.15,
    alone_margin=1.1,
    cluster_warpgroups=2,
    code_nbytes=32 * 1024,
)
"""The one chip that was measured: all targets use its figures until theirs are."""
