"""Device half: what each command does to the device's tensors (torch, transformers)."""
