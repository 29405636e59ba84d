"""The wire layout, as Python dataclasses held against wire.hpp."""
