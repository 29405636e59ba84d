"""Client of the control plane of duckd."""
