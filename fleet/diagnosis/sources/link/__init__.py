"""Sources about the network link."""
