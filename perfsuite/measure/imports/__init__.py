"""What an import imports, in a fresh process: modules, files and bytes, and the backends of JAX that it starts."""
