"""Reading models without torch: what MODEL is, its configuration, and the headers of its weight files."""
