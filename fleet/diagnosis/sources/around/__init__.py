"""Sources about the world around the box."""
