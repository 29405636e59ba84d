"""Evidence from the host's side: what switch ports, plugs and people say of a duck, whatever the duck says itself."""
