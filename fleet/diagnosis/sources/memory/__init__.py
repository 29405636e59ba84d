"""Sources about memory."""
