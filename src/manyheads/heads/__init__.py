"""What the heads of a real model do: statistics, roles, importance, gates, and their removal."""
