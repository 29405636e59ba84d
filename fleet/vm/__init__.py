"""The lab of virtual machines: a network namespace in which ducks really boot by their own firmware."""
