"""The lab: a fleet without the hardware. Here: ducks as processes."""
