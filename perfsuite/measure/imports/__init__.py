"""What an import imports, in a fresh process: modules and bytes, and the backends of JAX that it starts."""
