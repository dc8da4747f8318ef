"""The rules of the machine model that concern launches which overlap."""

LAUNCH_RULES = ("launches_overlap", "launch_waits_order", "launches_end_in_order")
"""Those of a single launch."""
PROGRAM_RULES = ("triggers_order_nothing",)
"""Those of several."""
