"""The rules of the machine model that concern semaphores only."""

SEMAPHORE_RULES = (
    "semaphores_release",
    "semaphores_acquire",
    "scopes_end_at_the_block",
    "blocks_wait_for_earlier_ones",
    "semaphores_end_at_zero",
    "proxies_end_at_the_block",
)
