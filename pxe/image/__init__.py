"""The duck image: a Debian kernel and an initramfs in layers, the same bytes for the same inputs."""
