"""Power, lifecycle, probes, placement, lab and the command line."""
