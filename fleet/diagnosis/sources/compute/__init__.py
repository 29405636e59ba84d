"""Sources about power, heat and speed."""
