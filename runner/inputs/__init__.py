"""Host half of a step: persistent rows, routes, arms, and the compiler from plan to commands (numpy)."""
