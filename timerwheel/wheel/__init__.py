"""The geometry of the timing wheel: slots, levels, the near wheel in memory, and order among topics."""
