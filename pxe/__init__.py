"""DHCP/TFTP/HTTP boot service and the duck image."""
