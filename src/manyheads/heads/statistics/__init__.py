"""Where every head looks: one streaming pass over texts, with the control that a head without preferences gives."""
