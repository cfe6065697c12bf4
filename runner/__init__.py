"""A complete model runner: scheduler, paged KV cache, persistent batch, command lists, devices."""
