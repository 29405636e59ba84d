"""Number formats, packing and the FFN kernels."""
