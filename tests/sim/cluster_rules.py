"""The rules of the machine model that concern clusters only."""

CLUSTER_RULES = (
    "block_sync_stays_in_block",
    "cluster_barrier_orders",
    "blocks_begin_before_use",
    "blocks_outlive_use",
    "remote_stores_are_asynchronous",
)
MULTICAST_RULES = ("far_arrivals_free",)
"""Those about what blocks arrive and copy for each other."""
