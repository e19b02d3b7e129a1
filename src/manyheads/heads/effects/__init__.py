"""How much each head matters: first-order importance, ablation, and what the loss rises by."""
