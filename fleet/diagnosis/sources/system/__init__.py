"""Sources about the operating system."""
