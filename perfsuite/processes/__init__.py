"""Other processes than this one: those that measure again or elsewhere, and those that measure together."""
